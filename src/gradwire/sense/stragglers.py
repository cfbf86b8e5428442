"""Straggler detector: finds a rank whose gradient was ready so much later than the others' that it is worth a report.

Pure: times at which ranks were ready in, a rank and its delay out. Every step waits for its last rank; only a rank that
is late by a whole step counts, as after a stall of its disk, its data or its host.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

# A straggler is later than the median of the others by this many steps, and by at least this many seconds (clocks are
# compared over the network, and short steps vary by more than their length). Chosen, not measured.
STEPS: Final = 1.0
LEAST: Final = 0.25
# A rank that stays slow is reported again after this many seconds.
AGAIN: Final = 60.0


@dataclass(slots=True)
class StragglerDetector:
    """Keeps the usual step time and when each rank was reported."""

    _usual: float = 0.0
    _reported: dict[int, float] = field(default_factory=dict)

    def detect(self, ready: Mapping[int, float], seconds: float, now: float) -> tuple[int, float] | None:
        """`ready` is when each rank's gradient was ready, in one clock; `seconds` is the time of the step."""
        usual = self._usual
        if not usual or len(ready) < 2:
            self._usual = seconds
            return None
        self._usual += 0.1 * (min(seconds, 2 * usual) - usual)  # bounded: one stall must not hide the next
        last = max(ready, key=lambda rank: ready[rank])
        late = ready[last] - statistics.median(at for rank, at in ready.items() if rank != last)
        if late < max(LEAST, STEPS * usual) or now - self._reported.get(last, -AGAIN) < AGAIN:
            return None
        self._reported[last] = now
        return last, late
