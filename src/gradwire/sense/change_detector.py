"""Change: has the network become another one? Steps in, a verdict out; everything that remembers is reset by it.

A step's time on the network is overhead + hops x latency + bytes / bandwidth, so on one network the times of two sizes
bound each other: without its latency, a step takes no less than a smaller one, and no more than it in proportion to
their bytes. Steps of one size must take the same. What lies outside by more than noise speaks for a change:

    1. expected  the range that earlier steps allow a step of this size (a point, where there were steps of its size)
    2. residual  log(time / the nearer end of that range), in units of the noise that steps of equal size show
    3. evidence  Page's cumulative sum of the residuals beyond SLACK, for longer and for shorter times apart
    4. verdict   a change when the evidence reaches ENOUGH; one step alone never does

Steps under suspicion are kept apart. They are what is known of the new network when it is one, and join the others when
it is not. A slow drift is seen too: the reference is the median of up to KEPT steps and falls behind.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import dataclass, field
from typing import Final

# Steps that a new one is compared with; a level is seldom kept for less.
KEPT: Final = 16
# Sizes within this factor are one size.
SAME_SIZE: Final = 1.2
# Standard deviation of log(time): what is assumed before steps showed it, and the least that is ever believed (an
# estimate within 30 % is all that is asked, and three steps off by three deviations are a change).
UNKNOWN_NOISE: Final = 0.2
LEAST_NOISE: Final = 0.1
# Steps over which the noise is learnt: its variance is then known to about a fifth.
LEARNT_OVER: Final = 32
# Variance of the median of n steps, in units of a step's variance / n (that of a Gaussian's median: pi / 2).
MEDIAN_ERROR: Final = math.pi / 2
# Exchanges of different levels differ in their own cost beside bytes and latency; times must contradict each other by
# this factor more before they count.
UNLIKE: Final = 2.0
# Evidence begins at this many deviations and is a change when it sums up to ENOUGH: by Wald's bound about one false
# alarm in exp(2 x SLACK x ENOUGH) = 160,000 steps of Gaussian noise. A step counts for at most MOST: it takes two.
SLACK: Final = 1.5
ENOUGH: Final = 4.0
MOST: Final = 3.0
# However wrong the stamps, this much of the network's time was bytes moving.
LEAST_MOVING: Final = 0.02


@dataclass(frozen=True, slots=True)
class StepSample:
    """One step: bytes sent, seconds on the network, and how many of those are latency."""

    nbytes: int
    busy: float
    latency: float

    @property
    def moving(self) -> float:
        """Overhead and bytes; a latency that is overrated leaves a little."""
        return max(self.busy - self.latency, LEAST_MOVING * self.busy)


@dataclass(slots=True)
class ChangeDetector:
    """Keeps the steps of the present network; `take` once per step."""

    _known: deque[StepSample] = field(default_factory=lambda: deque(maxlen=KEPT))
    _suspects: list[tuple[StepSample, float]] = field(default_factory=list)
    _variance: float = UNKNOWN_NOISE**2
    _longer: float = 0.0
    _shorter: float = 0.0

    @property
    def noise(self) -> float:
        """Relative deviation of the times of steps of one size."""
        return math.sqrt(self._variance)

    def take(self, sample: StepSample) -> list[StepSample]:
        """Add a step. Where it shows a change, the steps that are of the new network, this one last; else none."""
        residual = self._residual(sample)  # 1, 2
        self._longer = max(0.0, self._longer + min(residual, MOST + SLACK) - SLACK)  # 3
        self._shorter = max(0.0, self._shorter + min(-residual, MOST + SLACK) - SLACK)
        self._suspects.append((sample, residual))
        if max(self._longer, self._shorter) >= ENOUGH:  # 4
            return self._restart(1.0 if self._longer >= ENOUGH else -1.0)
        if not self._longer and not self._shorter:
            self._known.extend(one for one, _ in self._suspects)
            self._suspects.clear()
        return []

    def _restart(self, side: float) -> list[StepSample]:
        """Begin anew with the last steps that lay on the side which made the change."""
        turned = [one for one, residual in self._suspects if side * residual > SLACK]
        self._known.clear()
        self._known.extend(turned)
        self._suspects.clear()
        self._longer = self._shorter = 0.0
        return turned

    def _residual(self, sample: StepSample) -> float:
        alike = [one.moving for one in self._known if _ratio(one.nbytes, sample.nbytes) <= SAME_SIZE]
        if not alike:
            return self._beyond(sample) / self.noise
        expected = statistics.median(alike) + sample.latency
        residual = math.log(sample.busy / expected)
        if len(alike) > 1:  # outliers count as far as they may be noise
            square = min(residual * residual, 9 * self._variance)
            self._variance = max(LEAST_NOISE**2, self._variance + (square - self._variance) / LEARNT_OVER)
        return residual / (self.noise * math.sqrt(1 + MEDIAN_ERROR / len(alike)))

    def _beyond(self, sample: StepSample) -> float:
        """How far outside the range that steps of other sizes allow."""
        lowest, highest = 0.0, math.inf
        for one in self._known:
            share = sample.nbytes / one.nbytes
            lowest = max(lowest, one.moving * min(1.0, share) / UNLIKE)
            highest = min(highest, one.moving * max(1.0, share) * UNLIKE)
        lowest, highest = lowest + sample.latency, highest + sample.latency
        if sample.busy > highest:
            return math.log(sample.busy / highest)
        return math.log(sample.busy / lowest) if sample.busy < lowest else 0.0


def _ratio(one: int, other: int) -> float:
    return max(one, other) / max(min(one, other), 1)
