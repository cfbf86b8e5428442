"""Late: which rank had its gradient ready so much later than the others that somebody should look at it.

Pure: moments and the time in, a rank and its lateness out. Every step waits for its last rank, and somebody is always
last; what counts is a rank behind by a whole step, as after a stall of its disk, its data or its host.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

# Behind the middle of the others by so many of their steps, and by at least so many seconds (clocks are compared over
# the network, and short steps jitter by more than themselves). Chosen, not measured.
STEPS: Final = 1.0
LEAST: Final = 0.25
# A rank that stays slow is named again after this long.
AGAIN: Final = 60.0


@dataclass(slots=True)
class StragglerDetector:
    """Remembers how long steps take and who was named when."""

    _usual: float = 0.0
    _named: dict[int, float] = field(default_factory=dict)

    def judge(self, ready: Mapping[int, float], seconds: float, now: float) -> tuple[int, float] | None:
        """`ready` is when each rank's gradient was, on one clock; `seconds` what the step took."""
        usual = self._usual
        if not usual or len(ready) < 2:
            self._usual = seconds
            return None
        self._usual += 0.1 * (min(seconds, 2 * usual) - usual)  # one stall must not excuse the next
        last = max(ready, key=lambda rank: ready[rank])
        late = ready[last] - statistics.median(at for rank, at in ready.items() if rank != last)
        if late < max(LEAST, STEPS * usual) or now - self._named.get(last, -AGAIN) < AGAIN:
            return None
        self._named[last] = now
        return last, late
