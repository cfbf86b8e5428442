"""Peer: round trip and clock offset between two hosts, from records that echo each other (NTP's arithmetic).

A record carries t3 (sent, sender's clock), t1 (when we sent the record it answers, our clock) and t2 (when that one
arrived, sender's clock). Received at t4:

    round trip = (t4 - t1) - (t3 - t2)           holding time at the other end is taken off
    offset     = ((t2 - t1) + (t3 - t4)) / 2     other clock minus ours, exact where the path is symmetric

Arrivals may be noted late, never early, so a round trip is never too short and the least one is the best; its offset is
used. Clocks need not agree and may drift: samples are forgotten after a window.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

# A path change (a new route, a moved phone) shows in the minimum after this long.
WINDOW: Final = 60.0


@dataclass(slots=True)
class ClockSync:
    """What is known of one other rank's path and clock."""

    _samples: deque[tuple[float, float, float]] = field(default_factory=deque)  # (at, round trip, offset)
    last: float | None = None

    def take(self, t1: float, t2: float, t3: float, t4: float) -> None:
        """One echoed record; nonsense from a clock that jumped is left out."""
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
        """Other clock minus ours; 0 before the first sample."""
        if not self._samples:
            return 0.0
        return min(self._samples, key=lambda sample: sample[1])[2]
