"""Floor: what a path carries at least, from rates of senders that had no more to send. Pure.

Every such rate is a lower bound, so the highest would be one too, but for clocks, timestamps and shapers that let a
burst pass. The rate that was reached several times counts. Rates fall when less is sent and that proves nothing, so old
ones are kept; after a network change (sense/change_detector.py) a new floor is started.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field
from typing import Final

# The rate that this many of the kept steps reached.
REACHED: Final = 3
KEPT: Final = 64


@dataclass(slots=True)
class Floor:
    """Keeps the rates; `value` is 0 until enough of them are known."""

    value: float = 0.0
    _rates: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))

    def lower(self, rate: float) -> None:
        """The path was measured to carry only this much now: what it carried before proves nothing any more."""
        if self.value > rate:
            self._rates = deque((min(each, rate) for each in self._rates), maxlen=KEPT)
            self.value = rate

    def add(self, rate: float) -> float:
        if rate > 0:
            self._rates.append(rate)
            if len(self._rates) >= REACHED:
                self.value = heapq.nlargest(REACHED, self._rates)[-1]
        return self.value
