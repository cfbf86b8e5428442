"""Price: how many times more steps a level needs for the same loss, from a sample of this job's own gradient. Pure.

What a sparse level costs depends on the model. The top 10 % of one gradient hold 99.8 % of its energy, and of another
58 %: the first training does not notice, the second needs 45 % more steps. So the price follows from the energy that a
level keeps when it is applied to this gradient with error feedback:

    price = 1 + sensitivity x ln(1 / kept)

`kept` is the share of the squared norm of gradient + residual that a step sends. It is measured without running the
level: every share on the ladder selects from the same few thousand sampled elements, step after step, with a residual
of its own (`SelectionTrial`). What accumulates in a residual counts, so it takes some steps until a small share shows
its price.

`sensitivity` depends on the optimizer. Error feedback sends a waiting element in one burst. SGD adds it as it is; an
optimizer that divides by the root of squared gradients (Adam and its like) takes shorter steps after a burst.

Dense formats round and hold nothing back for long: their prices are constants. A sample does not show what low rank
leaves out: its price follows from its residual, once it runs (decide/lowrank_price.py). All constants are from
`benchmarks/lossiness.py`, which measures steps to the same loss for models, optimizers and levels
(docs/results/lossiness.md).
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gradwire.decide.lowrank_price import LowRankPrices
from gradwire.decide.shared_mask_trial import SharedMaskEnergy
from gradwire.level import Level

Sample = NDArray[np.float32]

# Sensitivity of optimizers with second moments, and of others. In the logarithm the cost of six jobs is nearly linear,
# from kept energies of 0.9 (1.06 times the steps) to 0.03 (4 times).
ADAPTIVE: Final = 1.0
PLAIN: Final = 0.4
# Prices of value formats for both; others are exact enough to cost nothing.
FORMATS: Final = {"int8": (1.002, 1.001), "int4": (1.02, 1.01), "int2": (1.2, 1.1)}
EXACT: Final = (1.0, 1.0)
# Steps of a trial before its value is used; until then share ^ DEMANDING, the least that any gradient measured kept.
SETTLED: Final = 20
DEMANDING: Final = 0.5
# After so many steps residuals are as full as they become, prices change over hundreds of steps, and the trials take
# turns, which saves most of their time.
STEADY: Final = 200
# Below, a level sends next to nothing, and its price is that of this.
LEAST_KEPT: Final = 1e-4
# Gain of the average of kept energies: a mean over about 20 steps.
GAIN: Final = 0.05


class SelectionTrial:
    """Top-k selection with error feedback of one share, on the sample only."""

    def __init__(self, share: float) -> None:
        self.share, self.kept, self.steps = share, 1.0, 0
        self._residual: Sample | None = None

    def take(self, sample: Sample) -> None:
        residual = self._residual
        if residual is None or len(residual) != len(sample):
            residual, self.steps = np.zeros_like(sample), 0
        waiting = residual + sample
        size = np.abs(waiting)
        count = max(1, round(self.share * len(size)))
        least = np.partition(size, len(size) - count)[len(size) - count]
        energy = float(np.dot(waiting, waiting))
        left = self._residual = np.where(size >= least, np.float32(0), waiting)
        if energy > 0:
            kept = 1 - float(np.dot(left, left)) / energy
            self.steps += 1
            self.kept += max(GAIN, 1 / self.steps) * (kept - self.kept)


class PriceList:
    """The prices of levels for one job; call `take` once per step with the sample of that step's gradient."""

    def __init__(self, shares: tuple[float, ...]) -> None:
        self._trials = {share: SelectionTrial(share) for share in shares}
        self._shared = SharedMaskEnergy(shares)
        self._lowrank = LowRankPrices()
        self._turn = self._size = 0
        self._adaptive = True  # the more cautious assumption, until the optimizer is known

    def take(self, sample: Sample | None, adaptive: bool | None) -> None:
        if adaptive is not None:
            self._adaptive = adaptive
        if sample is None or not len(sample) or not bool(np.isfinite(sample).all()):
            return
        self._shared.take(sample)
        trials = list(self._trials.values())
        if len(sample) == self._size and all(trial.steps >= STEADY for trial in trials):
            self._turn = (self._turn + 1) % len(trials)
            trials = [trials[self._turn]]
        self._size = len(sample)
        for trial in trials:
            trial.take(sample)

    def take_residual(self, ran: Level, residual: float) -> None:
        """A step ran at this level, and its residual had so many times the energy of its gradient."""
        self._lowrank.take(ran, residual)

    @property
    def settled(self) -> bool:
        """Whether prices are those of this job's gradient; a job without samples has no better ones than now."""
        own = all(trial.steps >= SETTLED for trial in self._trials.values())
        return not self._size or (own and self._shared.settled)

    def of(self, level: Level) -> float:
        """How many times more steps the level needs than uncompressed training."""
        kind = 0 if self._adaptive else 1
        if level.select == "lowrank":
            return self._lowrank.of(level.rank, self._adaptive)
        rounding = FORMATS.get(level.values, EXACT)[kind]
        if not level.sparse:
            return rounding
        kept = self._shared.kept(level.ratio) if level.select == "sharedk" else self.kept(level.ratio)
        return rounding * (1 + (ADAPTIVE, PLAIN)[kind] * math.log(1 / max(kept, LEAST_KEPT)))

    def kept(self, share: float) -> float:
        """The share of the energy that top-k selection of this share sends: of its trial, or between the two next to
        it."""
        trial = self._trials.get(share)
        if trial is not None:
            return trial.kept if trial.steps >= SETTLED else min(trial.kept, share**DEMANDING)
        known = sorted(one for one, found in self._trials.items() if found.steps >= SETTLED)
        if not known:
            return float(share**DEMANDING)
        return float(np.interp(np.log(share), np.log([*known, 1.0]), [*(self._trials[s].kept for s in known), 1.0]))
