"""Replica check: compares the replicas' digests through torch's store, in a job whose ranks leave and rejoin.

    1. the first rank at a step writes its digest
    2. every other rank reads it and compares; no rank waits for an absent one
    3. a rank that differs writes so, and every other rank stops at its next comparison

There is no collective, so that ranks need not agree on who is present. A thread with its own connection uses the
store, which may not answer: training waits for it with a deadline, and skips what was not answered by then. Step
numbers repeat after a rollback, so every key holds the number of rollbacks before it (the generation).
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
# Seconds that training waits for an answer: five round trips over a satellite (0.6 s each), one of them lost.
ANSWER_TIMEOUT: Final = 5.0
# Seconds that close() waits for the thread: it may be in the middle of a call to the store.
CLOSE_TIMEOUT: Final = 10.0


class ReplicaCheck:
    """One rank's side. `warn` gets what was not compared; after an error of the store nothing is compared any more.

    `joined`: this process rejoined a running job; it reads the generation from the store and rolls nothing back.
    """

    def __init__(
        self, store: Store, name: str, rank: int, warn: Callable[[str], None], *, joined: bool = False
    ) -> None:
        from torch._C._distributed_c10d import PrefixStore

        self._keys = PrefixStore(f"gradwire/verify/{name}", store.clone() if hasattr(store, "clone") else store)
        self._rank, self._warn, self._joined = rank, warn, joined
        self._generation = 0
        self._first: list[str] = []
        self._result = 0, ""
        self._open, self._answered = True, threading.Event()
        self._answered.set()
        self._questions: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="gradwire-compare", daemon=True)
        self._thread.start()

    def compare(self, step: int, digest: int) -> None:
        """IntegrityError when this rank's digest of the step differs from the first rank's, or when any two ranks'
        digests differed at an earlier step."""
        if self._open and self._answered.is_set():
            self._answered.clear()
            self._questions.put(partial(self._answer, self._generation, step, digest))
            if not self._answered.wait(ANSWER_TIMEOUT):
                self._warn(
                    f"observe.verify: torch's store did not answer within {ANSWER_TIMEOUT:g} s; replicas are not "
                    "compared until it does"
                )
        generation, difference = self._result
        if difference and generation == self._generation:
            raise IntegrityError(difference)

    def roll_back(self) -> None:
        """Every rank returns to a saved state, at the same point: earlier digests are not compared with later ones."""
        if not self._joined:
            self._generation += 1
            self._questions.put(partial(self._keys.set, GENERATION, str(self._generation)))

    def close(self) -> None:
        self._questions.put(None)
        self._thread.join(CLOSE_TIMEOUT)

    def _run(self) -> None:
        try:
            while (question := self._questions.get()) is not None:
                question()
        except Exception as error:  # the top of this thread: training does not need it
            self._warn(f"observe.verify: torch's store does not answer; replicas are not compared any more ({error})")
        self._open = False
        self._answered.set()

    def _answer(self, generation: int, step: int, digest: int) -> None:
        current = self._read_generation() if self._joined else generation
        self._result = generation, self._difference(current, step, digest)
        self._answered.set()

    def _read_generation(self) -> int:
        """The generation of the job that this process rejoined."""
        return int(self._keys.get(GENERATION)) if self._keys.check([GENERATION]) else 0

    def _difference(self, generation: int, step: int, digest: int) -> str:
        """Which ranks differ; empty where none do."""
        differ, key = f"{generation}/{DIFFER}", f"{generation}/{step}"
        if self._keys.check([differ]):
            return self._keys.get(differ).decode(errors="replace")[:200]
        own = f"{digest} {self._rank}"
        first = self._keys.compare_set(key, "", own).decode(errors="replace")  # 1
        if first == own:
            self._first.append(key)
            if len(self._first) > KEPT:
                self._keys.delete_key(self._first.pop(0))
            return ""
        theirs, _, rank = first.partition(" ")
        if theirs == str(digest):  # 2
            return ""
        text = (
            f"replicas differ after step {step}: ranks {rank} and {self._rank} restored different gradients; restart "
            "from a checkpoint"
        )
        self._keys.set(differ, text)  # 3
        return text
