"""Transfer progress: log lines about a transfer that training waits for, if it takes longer than a few seconds."""

from __future__ import annotations

import logging
from typing import Final

from gradwire.clock import Clock, MonotonicClock
from gradwire.units import Bytes, Seconds

log = logging.getLogger("gradwire")

# Seconds until the first line; the next ones come after twice as long each, so that hours of transfer are a few lines.
FIRST_LINE: Final = 3.0


class TransferProgress:
    """Lines such as "sending rank 0's weights to rank 1: 1.2 MB of 3 MB (40 %) after 5 s, about 7.5 s left"."""

    def __init__(self, what: str, total: Bytes, *, shown: bool, clock: Clock | None = None) -> None:
        self._what, self._total, self._shown = what, total, shown
        self._clock = clock or MonotonicClock()
        self._began = self._clock.now()
        self._next_line = FIRST_LINE

    def update(self, done: int) -> None:
        """`done` bytes were sent so far."""
        elapsed = self._clock.now() - self._began
        if not self._shown or elapsed < self._next_line or not done:
            return
        self._next_line = 2 * elapsed
        left = Seconds(elapsed * (self._total - done) / done)
        log.warning(
            "gradwire: sending %s: %s of %s (%.0f %%) after %s, about %s left; ranks that build or load the same "
            "weights need no transfer (docs/howto/start.md)",
            self._what, Bytes(done), self._total, 100 * done / self._total, Seconds(elapsed), left,
        )  # fmt: skip

    def finish(self) -> None:
        """Everything has arrived."""
        elapsed = Seconds(self._clock.now() - self._began)
        if self._shown and elapsed >= FIRST_LINE:
            log.warning("gradwire: sent %s: %s in %s", self._what, self._total, elapsed)
