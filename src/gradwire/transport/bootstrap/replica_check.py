"""Compare: do replicas hold the same bytes, in a job whose ranks come and go? Asked through torch's store.

    1. whoever is first at a step writes its digest
    2. everybody else finds that one and compares; a rank that is not there is not waited for
    3. who differs writes so, and everybody else stops at the next comparison

No collective, so that it needs no agreement on who is present. A thread with its own connection asks, because a store
may not answer: training waits for it with a deadline, and skips what was not answered by then. Steps are counted again
after a rollback, so every key holds the number of rollbacks before it (the generation).
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from gradwire.errors import IntegrityError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

DIFFER: Final = "differ"
GENERATION: Final = "generation"
# Comparisons whose digests are kept: members of one plan are never more than a step apart.
KEPT: Final = 3
# How long training waits for an answer, seconds: five round trips over a satellite (0.6 s each), one of them lost.
PATIENCE: Final = 5.0
# How long the thread is waited for at the end: it may be in the middle of a call to the store.
ENOUGH: Final = 10.0


class ReplicaCheck:
    """One rank's side. `warn` hears what was not compared; after an error of the store nothing is compared any more.

    `joined`: this process came to a running job, which tells it the generation; it rolls nothing back.
    """

    def __init__(
        self, store: Store, name: str, rank: int, warn: Callable[[str], None], *, joined: bool = False
    ) -> None:
        from torch._C._distributed_c10d import PrefixStore

        self._book = PrefixStore(f"gradwire/verify/{name}", store.clone() if hasattr(store, "clone") else store)
        self._rank, self._warn, self._joined = rank, warn, joined
        self._generation = 0
        self._first: list[str] = []
        self._verdict = 0, ""
        self._open, self._answered = True, threading.Event()
        self._answered.set()
        self._questions: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="gradwire-compare", daemon=True)
        self._thread.start()

    def compare(self, step: int, digest: int) -> None:
        """IntegrityError when this rank's digest of a step is another than that of the first to be there, and when any
        two ranks' were at an earlier step."""
        if self._open and self._answered.is_set():
            self._answered.clear()
            self._questions.put(partial(self._answer, self._generation, step, digest))
            if not self._answered.wait(PATIENCE):
                self._warn(
                    f"observe.verify: torch's store did not answer in {PATIENCE:g} s, replicas are not compared until "
                    "it does"
                )
        generation, verdict = self._verdict
        if verdict and generation == self._generation:
            raise IntegrityError(verdict)

    def begin_again(self) -> None:
        """Every rank goes back to a saved state, at the same point: no digest of before is one of the steps to come."""
        if not self._joined:
            self._generation += 1
            self._questions.put(partial(self._book.set, GENERATION, str(self._generation)))

    def close(self) -> None:
        self._questions.put(None)
        self._thread.join(ENOUGH)

    def _run(self) -> None:
        try:
            while (question := self._questions.get()) is not None:
                question()
        except Exception as error:  # the top of this thread: training does not need it
            self._warn(f"observe.verify: torch's store does not answer, replicas are not compared any more ({error})")
        self._open = False
        self._answered.set()

    def _answer(self, generation: int, step: int, digest: int) -> None:
        self._verdict = generation, self._asked(self._told() if self._joined else generation, step, digest)
        self._answered.set()

    def _told(self) -> int:
        """The generation of the job that this process came to."""
        return int(self._book.get(GENERATION)) if self._book.check([GENERATION]) else 0

    def _asked(self, generation: int, step: int, digest: int) -> str:
        """What is wrong; empty where nothing is."""
        differ, key = f"{generation}/{DIFFER}", f"{generation}/{step}"
        if self._book.check([differ]):
            return self._book.get(differ).decode(errors="replace")[:200]
        own = f"{digest} {self._rank}"
        first = self._book.compare_set(key, "", own).decode(errors="replace")  # 1
        if first == own:
            self._first.append(key)
            if len(self._first) > KEPT:
                self._book.delete_key(self._first.pop(0))
            return ""
        theirs, _, rank = first.partition(" ")
        if theirs == str(digest):  # 2
            return ""
        verdict = f"replicas differ after step {step}: ranks {rank} and {self._rank} restored different gradients"
        self._book.set(differ, verdict)  # 3
        return verdict
