"""Clock sync: round trip and clock offset between two hosts, from records that echo each other (NTP's arithmetic).

A record carries t3 (sent, peer's clock), t1 (when this rank sent the record it answers, own clock) and t2 (when that
one arrived, peer's clock). Received at t4 (own clock):

    round trip = (t4 - t1) - (t3 - t2)           without the time between receipt and answer at the peer
    offset     = ((t2 - t1) + (t3 - t4)) / 2     peer's clock minus the own, exact where the path is symmetric

An arrival may be noted late, never early, so the shortest round trip is the best sample, and its offset is used. Clocks
need not agree and may drift: samples are dropped after a window.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

# A path change (a new route, a moving phone) shows in the minimum after this many seconds.
WINDOW: Final = 60.0


@dataclass(slots=True)
class ClockSync:
    """Round trip and clock offset of one peer."""

    _samples: deque[tuple[float, float, float]] = field(default_factory=deque)  # (at, round trip, offset)
    last: float | None = None

    def take(self, t1: float, t2: float, t3: float, t4: float) -> None:
        """Add one echoed record; impossible values from a clock that jumped are ignored."""
        trip = (t4 - t1) - (t3 - t2)
        if trip < 0 or trip > WINDOW:
            return
        self.last = trip
        self._samples.append((t4, trip, ((t2 - t1) + (t3 - t4)) / 2))
        while self._samples[0][0] < t4 - WINDOW:
            self._samples.popleft()

    @property
    def rtprop(self) -> float | None:
        return min((trip for _, trip, _ in self._samples), default=None)

    @property
    def offset(self) -> float:
        """Peer's clock minus the own; 0 before the first sample."""
        if not self._samples:
            return 0.0
        return min(self._samples, key=lambda sample: sample[1])[2]
