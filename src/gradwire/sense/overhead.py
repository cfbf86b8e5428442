"""Overhead: the part of a synchronisation's time that does not depend on bytes, from steps of different size.

Besides latency, an exchange costs wake-ups, system calls and waiting for busy cores. If that time counted as transfer,
a fast network would look slow, compression would make it look even slower (fewer bytes, same time), and a controller
would never stop compressing. Two sizes separate both parts (an alpha-beta fit of medians):

    bandwidth = (large - small bytes) / (their times' difference)
    overhead  = large time - large bytes / bandwidth

All steps must be of one network: after a change (sense/change_detector.py) a new fit is started.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, field
from typing import Final

# Steps that are kept; sizes change with the level, and levels do not change often.
SAMPLES: Final = 16
# Sizes must differ by this factor for a fit, and times by this factor for bytes to matter.
CONTRAST: Final = 1.5
MATTERS: Final = 1.1


@dataclass(slots=True)
class Overhead:
    """`seconds` is the overhead of the last fit, 0 before one; `rate` is the bandwidth of this step's fit, if any."""

    seconds: float = 0.0
    rate: float | None = None
    _samples: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=SAMPLES))

    def take(self, nbytes: int, busy: float) -> float:
        """Add one step and fit again where sizes allow it; returns the overhead, at most this step's time."""
        self._samples.append((nbytes, busy))
        self.rate = None
        small, large = min(n for n, _ in self._samples), max(n for n, _ in self._samples)
        if large >= CONTRAST * small:
            quick = statistics.median(t for n, t in self._samples if n <= 1.2 * small)
            slow = statistics.median(t for n, t in self._samples if n >= large / 1.2)
            if slow < MATTERS * quick:
                self.seconds = quick
            else:
                self.rate = (large - small) / (slow - quick)
                self.seconds = max(0.0, slow - large / self.rate)
        return min(self.seconds, busy)
