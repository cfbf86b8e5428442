"""Change detector: decides from the times of steps whether the network changed. Estimates are reset by a change.

A step's time on the network is overhead + hops x latency + bytes / bandwidth. So on one network the times of two sizes
bound each other: without latency, a larger step takes no less time than a smaller one, and at most as many times more
as it has more bytes. Steps of one size must take the same time. A time outside by more than noise indicates a change:

    1. expected  the range of times that earlier steps allow for this size (one value, where steps had this size)
    2. residual  log(time / the nearer end of that range), in units of the noise between steps of equal size
    3. evidence  Page's cumulative sum of the residuals beyond SLACK, separately for longer and for shorter times
    4. result    a change when the evidence reaches ENOUGH; one step alone never does

Suspect steps are kept separately. After a change they are the first steps of the new network; otherwise they join the
others. A slow drift is detected too: the reference, a median of up to KEPT steps, lags behind it.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import dataclass, field
from typing import Final

# Steps that a new one is compared with; a level is seldom used for fewer.
KEPT: Final = 16
# Sizes within this factor are one size.
SAME_SIZE: Final = 1.2
# Standard deviation of log(time): the value before it is measured, and its lower limit (estimates need to be within
# 30 % only, and three steps that differ by three deviations are a change).
UNKNOWN_NOISE: Final = 0.2
LEAST_NOISE: Final = 0.1
# Steps over which the noise is averaged: its variance is then known to about a fifth.
LEARNT_OVER: Final = 32
# Variance of the median of n steps, in units of a step's variance / n (that of a Gaussian's median: pi / 2).
MEDIAN_ERROR: Final = math.pi / 2
# Exchanges of different levels have different overheads besides bytes and latency: times of different sizes must
# contradict each other by this factor more before they count.
UNLIKE: Final = 2.0
# Deviations beyond SLACK are evidence; a sum of ENOUGH is a change. By Wald's bound this gives about one false alarm in
# exp(2 x SLACK x ENOUGH) = 160,000 steps of Gaussian noise. A step counts for at most MOST, so a change takes two.
SLACK: Final = 1.5
ENOUGH: Final = 4.0
MOST: Final = 3.0
# The least share of the network's time that counts as transfer of bytes, however wrong the timestamps are.
LEAST_MOVING: Final = 0.02


@dataclass(frozen=True, slots=True)
class StepSample:
    """One step: bytes sent, seconds on the network, and how many of those are latency."""

    nbytes: int
    busy: float
    latency: float
    # By how many seconds a small message's time usually differs from the typical one: the machine's part of the noise.
    jitter: float = 0.0

    @property
    def moving(self) -> float:
        """Time of overhead and bytes: busy time minus latency, at least a small share of it."""
        return max(self.busy - self.latency, LEAST_MOVING * self.busy)


@dataclass(slots=True)
class ChangeDetector:
    """Keeps the steps of the present network; call `take` once per step."""

    _known: deque[StepSample] = field(default_factory=lambda: deque(maxlen=KEPT))
    _suspects: list[tuple[StepSample, float]] = field(default_factory=list)
    _variance: float = UNKNOWN_NOISE**2
    _longer: float = 0.0
    _shorter: float = 0.0

    @property
    def noise(self) -> float:
        """Relative standard deviation of the times of steps of one size."""
        return math.sqrt(self._variance)

    def take(self, sample: StepSample) -> list[StepSample]:
        """Add a step. Returns the steps of the new network, this one last, when the network changed; else none."""
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
        """Start again with the suspect steps whose residual is on the side that indicated the change."""
        fresh = [one for one, residual in self._suspects if side * residual > SLACK]
        self._known.clear()
        self._known.extend(fresh)
        self._suspects.clear()
        self._longer = self._shorter = 0.0
        return fresh

    def _residual(self, sample: StepSample) -> float:
        alike = [one.moving for one in self._known if _ratio(one.nbytes, sample.nbytes) <= SAME_SIZE]
        if not alike:
            return self._beyond(sample) / math.hypot(self.noise, sample.jitter / sample.busy)
        expected = statistics.median(alike) + sample.latency
        residual = math.log(sample.busy / expected)
        if len(alike) > 1:  # an outlier counts for at most three deviations
            square = min(residual * residual, 9 * self._variance)
            self._variance = max(LEAST_NOISE**2, self._variance + (square - self._variance) / LEARNT_OVER)
        noise = math.hypot(self.noise, sample.jitter / expected)
        return residual / (noise * math.sqrt(1 + MEDIAN_ERROR / len(alike)))

    def _beyond(self, sample: StepSample) -> float:
        """Log distance from the range that steps of other sizes allow; 0 inside."""
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
