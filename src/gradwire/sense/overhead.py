"""Overhead: the part of a synchronisation's time that bytes do not explain, from steps of different size.

Small exchanges cost wake-ups, system calls and turns on busy cores besides latency. Taken for bandwidth, that time
makes a fast network look slow, compression makes it look slower still (fewer bytes, same time), and a controller that
believes it never comes back. Two sizes tell bytes from the rest (an alpha-beta fit of medians):

    bandwidth = (large - small bytes) / (their times' difference)
    overhead  = large time - large bytes / bandwidth

All steps must be of one network: whoever finds that it changed begins with a new fit (sense/change_detector.py).
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, field
from typing import Final

# Steps to look back; sizes change with the level, and levels do not change often.
SAMPLES: Final = 16
# Sizes must differ this much to tell anything, and times this much for bytes to matter at all.
CONTRAST: Final = 1.5
MATTERS: Final = 1.1


@dataclass(slots=True)
class Overhead:
    """`seconds` is the last fit's, 0 before there was one; `rate` this step's, None where sizes and times tell none."""

    seconds: float = 0.0
    rate: float | None = None
    _samples: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=SAMPLES))

    def take(self, nbytes: int, busy: float) -> float:
        """Add one step, fit again where sizes allow it; never more than this step took."""
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
