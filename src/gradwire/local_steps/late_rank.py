"""Late rank: a thread that takes part in a round for a rank whose step takes longer than the round.

Without it the other ranks would wait for the end of that step. The thread looks at the clock only; what it does at the
end of a round is `TimedRounds.pass_round`. It ends with the first error, which the training thread raises at its next
step.
"""

from __future__ import annotations

import threading
from typing import Final, Protocol

# Seconds between two looks, at least.
POLL: Final = 0.02


class PassableRounds(Protocol):
    """Rounds that a thread beside the training thread may take part in."""

    def seconds_until_late(self) -> float:
        """Until this rank's training thread is late for the end of the round."""
        ...

    def pass_round(self) -> None:
        """Take part for it, if it is still late."""
        ...

    def fail(self, error: BaseException) -> None:
        """Raise this error on the training thread."""
        ...


class LateRankThread:
    """Runs from `start` to `close`."""

    def __init__(self, rounds: PassableRounds) -> None:
        self._rounds = rounds
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gradwire-late-rank", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Waits for a second at most: an exchange that the thread is in is ended by its peers or its deadline."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(1.0)

    def _run(self) -> None:
        while not self._closing.wait(max(POLL, self._rounds.seconds_until_late())):
            try:
                self._rounds.pass_round()
            except BaseException as error:  # the top of this thread: the training thread raises it
                if not self._closing.is_set():
                    self._rounds.fail(error)
                return
