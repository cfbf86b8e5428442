"""Transport trial: some steps over a candidate, compared with those before. Pure.

The candidate is kept if its steps are clearly shorter. Where it uses another level than the steps before, because it
cannot carry that one or another one suits it better, both are compared by what they take to the same loss: `before` is
what the steps before would be worth at the candidate's price. If the network changes during a trial, its steps until
then are what counts: they keep the candidate if each was clearly shorter, and else say nothing.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from gradwire.level import Level
from gradwire.types import TransportKind

# The measured gain, as a share of a step, that keeps a candidate.
KEEPS: Final = 0.05
# Steps that a comparison needs on each side; a trial ends undecided after MOST, and its first ones, in which windows
# open, do not count.
ENOUGH: Final = 8
MOST: Final = 24
OPENING: Final = 3
# So many steps that are all shorter, or all longer, than those before, by this share, are those of another network:
# what was measured before is no comparison any more.
LATEST: Final = 3
SHIFT: Final = 0.1
# A trial's step of so many times the usual one ends it.
FAR_LONGER: Final = 3.0


@dataclass(slots=True)
class Trial:
    """Steps over a candidate, against the median and the relative error of those before."""

    kind: TransportKind
    level: Level
    before: float
    error: float
    skipped: int = 0
    seconds: list[float] = field(default_factory=list)
    disturbed: bool = False

    def take(self, seconds: float) -> bool | None:
        """Whether to keep the candidate; None while that is not decided."""
        if seconds > FAR_LONGER * self.before:
            return False
        if self.skipped < OPENING:
            self.skipped += 1
            return None
        self.seconds.append(seconds)
        if shifted(self.seconds):
            shorter = max(self.seconds[:-LATEST]) < (1 - KEEPS) * self.before
            self.disturbed = not shorter
            return shorter
        if len(self.seconds) < ENOUGH:
            return None
        middle, error = median(self.seconds)
        ratio, doubt = middle / self.before, math.hypot(error, self.error)
        if abs(ratio - (1 - KEEPS)) <= doubt and len(self.seconds) < MOST:
            return None
        return ratio < 1 - KEEPS


def shifted(values: Collection[float]) -> bool:
    """Whether the last steps differ from all those before."""
    known = list(values)
    before, last = known[:-LATEST], known[-LATEST:]
    if len(before) < LATEST:
        return False
    return max(last) < (1 - SHIFT) * min(before) or min(last) > (1 + SHIFT) * max(before)


def median(values: Collection[float]) -> tuple[float, float]:
    """The median and its relative standard error, from the median absolute deviation."""
    middle = statistics.median(values)
    spread = statistics.median(abs(value - middle) for value in values)
    return middle, 1.25 * 1.4826 * spread / middle / math.sqrt(len(values))
