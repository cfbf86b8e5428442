"""Realised price: how many more steps the levels in use have cost, from the losses that the user notes. Pure.

decide/price.py predicts that a level needs `1 + extra` times the steps. Here one unknown says by how much that is wrong
for this job: the level really needs `1 + factor x extra` times the steps. Levels of one kind (sparse, low rank,
rounding) have one factor, because one constant of the prediction is behind their prices.

    1. a step at a level advances training by `1 / (1 + factor x extra)` steps; summed, that is its progress
    2. the logarithm of the loss, whose noise changes less than the loss's, is a smooth curve of the progress: a cubic
       polynomial of its logarithm. For every factor of a grid the best one is found, and how well the noted losses
       agree with it
    3. noise is what successive losses differ by; where the curve misses them by more than that, they count less
    4. that is the likelihood of each factor; with the prior it is the posterior

A straight line in the logarithm, or a square one, would know more and be wrong: losses bend by themselves as much as
levels bend them (docs/lossiness.md has the figures). With the cubic only the bends at changes of the level count. So
with one level from the first step to the last the answer stays "not known", and so it does for prices of a few per
cent, which bend the loss by less than its noise in any number of steps that a user would wait.

What else changes the loss's course ends the window of losses that is compared: a change of the learning rate, where it
is known, and losses that no curve fits (a drop of the learning rate that is not known, other data). What earlier
windows showed is kept, unless no curve fitted them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradwire.level import Level
from gradwire.types import Slowdown

Numbers = NDArray[np.float64]
Places = NDArray[np.int64]
Interval = tuple[float, float, float]

# Factors that are compared. Most jobs of docs/results/lossiness.md lie between a quarter and four.
LOG_FACTORS: Final = np.linspace(math.log(1 / 16), math.log(32), 37)
# Standard deviation of the factor's logarithm over those jobs, by kind of level: what is believed before any loss.
PRIOR: Final = {"rounding": 0.7, "sparse": 0.7, "lowrank": 1.2}
# Terms of the cubic. Before the window training may have made progress that is not known (a resumed job): as a multiple
# of that in the window.
TERMS: Final = 4
UNKNOWN: Final = (0.0, 1.0, 8.0)
# The first losses of a job fall in a way of their own.
SKIPPED: Final = 20
# Losses that a window keeps: more are averaged in pairs. Blocks that are fitted, and losses before the first fit.
MOST: Final = 512
BLOCKS: Final = 48
LEAST: Final = 60
# A fit takes milliseconds: one after so many losses, and after so large a share of those in the window.
FIT_EVERY: Final = 25
FIT_SHARE: Final = 0.1
# Correlation of neighbouring residuals from which a curve counts as not fitting: three times its deviation for noise.
MISFIT: Final = 0.5
# A change of the learning rate that ends a window.
RATE_CHANGE: Final = 0.1
# A factor is known when its interval (nine in ten) spans at most this ratio, or does not contain 1.
KNOWN: Final = 6.0
# A price whose bounds are further apart is not stated: the few that exclude the prediction by accident are the widest.
WIDEST: Final = 2.5
TAIL: Final = 0.05
TINY: Final = 1e-300
# The median of squared standard normal differences, relative to their mean.
MEDIAN_SQUARE: Final = 0.4549


def kind_of(level: Level) -> str:
    return "lowrank" if level.select == "lowrank" else "sparse" if level.sparse else "rounding"


class LossEntry(NamedTuple):
    """The logarithm of a noted loss, and what happened since the one before: steps, their mean extra, and the kind of
    the last level."""

    loss: float
    steps: int
    extra: float
    kind: str

    @classmethod
    def mean(cls, entries: list[LossEntry]) -> LossEntry:
        """Several as one."""
        count, steps = len(entries), sum(one.steps for one in entries)
        loss = sum(one.loss for one in entries) / count
        return cls(loss, steps, sum(one.extra * one.steps for one in entries) / steps, entries[-1].kind)


@dataclass(slots=True)
class LossWindow:
    """Losses that are compared; each entry is the mean of `stride` of them, so that there are never too many. `before`
    has the steps before them."""

    before: LossEntry
    entries: list[LossEntry] = field(default_factory=list)
    stride: int = 1
    _waiting: list[LossEntry] = field(default_factory=list)

    def add(self, entry: LossEntry) -> None:
        self._waiting.append(entry)
        if len(self._waiting) < self.stride:
            return
        self.entries.append(LossEntry.mean(self._waiting))
        self._waiting = []
        if len(self.entries) == MOST:
            self.entries = [LossEntry.mean(self.entries[i : i + 2]) for i in range(0, MOST, 2)]
            self.stride *= 2

    def evidence(self, kind: str) -> Numbers | None:
        """The log-likelihood of every factor of this kind; None where no curve fits."""
        losses = np.array([one.loss for one in self.entries])
        edges = np.linspace(0, len(losses), min(BLOCKS, len(losses) // 4), endpoint=False).astype(np.int64)
        sizes = np.diff(np.append(edges, len(losses)))
        means = np.add.reduceat(losses, edges) / sizes
        noise = 0.5 * float(np.median(np.diff(losses) ** 2)) / MEDIAN_SQUARE  # 3
        progress = np.add.reduceat(self._progress(kind), edges, axis=1) / sizes
        fits = [_fit(np.log(progress + unknown * progress[:, -1:]), means, sizes) for unknown in UNKNOWN]  # 2
        errors = np.array([found for found, _ in fits])
        least = float(errors.min())
        place = np.unravel_index(int(errors.argmin()), errors.shape)
        correlation = max(0.0, _correlation(fits[place[0]][1][place[1]] * np.sqrt(sizes)))
        if correlation > MISFIT:
            return None
        spare = max(1, len(sizes) - TERMS - 1)
        scale = max(noise, least / spare, TINY) * (1 + correlation) / (1 - correlation)
        likelihood = np.exp(-(errors - least) / (2 * scale)).mean(0)  # 4
        logs = np.log(np.maximum(likelihood, TINY))
        found: Numbers = logs - logs.max()
        return found

    def _progress(self, kind: str) -> Numbers:
        """The progress at every loss, a row for each factor."""
        every = [self.before, *self.entries]
        own = np.array([one.kind == kind for one in every])
        extras, steps = np.array([one.extra for one in every]), np.array([one.steps for one in every])
        factors = np.where(own, np.exp(LOG_FACTORS)[:, None], 1.0)
        progress: Numbers = np.cumsum(steps / (1 + factors * extras), axis=1)[:, 1:]  # 1
        return progress


def _fit(places: Numbers, means: Numbers, weights: Places) -> tuple[Numbers, Numbers]:
    """Squared errors and residuals of the best cubic over each row of places."""
    middle = places.mean(axis=1, keepdims=True)
    x = (places - middle) / places.std(axis=1, keepdims=True)
    roots = np.sqrt(weights)
    powers = x[:, :, None] ** np.arange(TERMS) * roots[:, None]
    basis, _ = np.linalg.qr(powers)
    y = means * roots
    residuals = y - (basis @ (np.swapaxes(basis, 1, 2) @ y)[:, :, None])[:, :, 0]
    return (residuals * residuals).sum(axis=1), residuals / roots


def _correlation(residuals: Numbers) -> float:
    energy = float(residuals @ residuals)
    return float(residuals[1:] @ residuals[:-1]) / energy if energy > 0 else 0.0


def _interval(weights: Numbers) -> Interval:
    """The factor's lower bound, median and upper bound."""
    low, middle, high = np.exp(np.interp((TAIL, 0.5, 1 - TAIL), np.cumsum(weights), LOG_FACTORS))
    return float(low), float(middle), float(high)


def _known(interval: Interval) -> bool:
    low, _, high = interval
    return high / low <= KNOWN or not low <= 1 <= high


class RealisedPrice:
    """Corrects predicted prices of one job; call `take` once per step."""

    def __init__(self) -> None:
        self._kept = {kind: np.zeros(len(LOG_FACTORS)) for kind in PRIOR}
        self._now: dict[str, Numbers] = {}
        self._factors: dict[str, float] = {}
        self._intervals: dict[str, Interval] = {}
        self._window = LossWindow(LossEntry(0.0, 1, 0.0, "rounding"))
        self._noted = self._since_fit = 0
        self._steps, self._extra = 0, 0.0
        self._rate: float | None = None

    def take(self, loss: float, level: Level, predicted: float, rate: float | None = None) -> None:
        """A step ran at `level`, whose predicted price is given; `loss` is 0 where none was noted, `rate` the learning
        rate where it is known."""
        self._steps, self._extra = self._steps + 1, self._extra + max(0.0, predicted - 1)
        if rate is not None and self._rate is not None and abs(rate - self._rate) > RATE_CHANGE * self._rate:
            self._close_window(keep=True)
        if self._rate is None or not self._window.entries:
            self._rate = rate
        if loss <= 0 or not math.isfinite(loss):
            return
        entry = LossEntry(math.log(loss), self._steps, self._extra / self._steps, kind_of(level))
        self._steps, self._extra = 0, 0.0
        self._noted += 1
        if self._noted <= SKIPPED:
            self._window.before = LossEntry.mean([self._window.before, entry])
            return
        self._window.add(entry)
        self._since_fit += 1
        count = len(self._window.entries) * self._window.stride
        if count >= LEAST and self._since_fit >= max(FIT_EVERY, FIT_SHARE * count):
            self._fit()

    def corrected(self, level: Level, predicted: float) -> float:
        """The price to decide by: the prediction, until losses alone show another one; then both by certainty."""
        return 1 + self._factors.get(kind_of(level), 1.0) * (predicted - 1)

    def slowdown(self, level: Level, predicted: float) -> Slowdown:
        """What losses alone show of the level; its bounds are those of nine in ten."""
        used, notes = self.corrected(level, predicted), self._noted
        known = self._intervals.get(kind_of(level))
        if predicted <= 1 or known is None:
            return Slowdown(level, predicted, used, notes=notes)
        low, realised, high = (1 + one * (predicted - 1) for one in known)
        if high > WIDEST * low:
            return Slowdown(level, predicted, used, notes=notes)
        return Slowdown(level, predicted, used, realised, low, high, notes)

    def _learn(self) -> None:
        """The intervals of factors that losses alone show, and those factors with the prior, to decide by."""
        kinds = [kind for kind in PRIOR if kind in self._now or self._kept[kind].any()]
        found = {kind: _interval(self._weights(kind, prior=False)) for kind in kinds}
        known = self._intervals = {kind: one for kind, one in found.items() if _known(one)}
        self._factors = {kind: math.exp(float(self._weights(kind, prior=True) @ LOG_FACTORS)) for kind in known}

    def _weights(self, kind: str, *, prior: bool) -> Numbers:
        log = self._kept[kind] + self._now.get(kind, 0.0)
        if prior:
            log = log - (LOG_FACTORS / PRIOR[kind]) ** 2 / 2
        weights = np.exp(log - log.max())
        found: Numbers = weights / weights.sum()
        return found

    def _fit(self) -> None:
        self._since_fit = 0
        used = {one.kind for one in self._window.entries if one.extra > 0}
        found = {kind: self._window.evidence(kind) for kind in used}
        if any(one is None for one in found.values()):
            self._close_window(keep=False)
        else:
            self._now = {kind: one for kind, one in found.items() if one is not None}
        self._learn()

    def _close_window(self, *, keep: bool) -> None:
        """Losses from here on are compared among themselves. What this window showed is kept, unless no curve fits."""
        for kind, evidence in self._now.items() if keep else ():
            self._kept[kind] = self._kept[kind] + evidence
        passed = LossEntry.mean([self._window.before, *self._window.entries])
        self._now, self._window = {}, LossWindow(passed)
