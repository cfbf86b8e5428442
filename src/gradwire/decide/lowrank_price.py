"""Low-rank price: how many times more steps low rank costs a job, by rank and by what waits once it has run. Pure.

What a rank leaves out depends on the job: rank 32 holds nearly all of the gradient of a GPT of width 256, and a third
of that of a regression with 512 outputs. Neither width nor rank tells which. What waits in the residual does, as a
multiple of the gradient's energy (`StepFacts.residual`, which every step measures anyhow):

    price = 1 + linear x waiting + square x waiting^2

    1. a residual needs steps to fill: the first at a rank do not count, those after them are averaged
    2. other ranks follow from the nearest that was measured: twice the rank leaves a half to a third of it waiting, and
       a half is assumed; half the rank leaves two to four times as much, and four times is assumed
    3. before any rank has run, the price is that of the rank alone, and so it is at most for less than a measured rank
    4. what was measured long ago is forgotten: prices change over hundreds of steps

Assumptions are on the careful side: too high a price leaves the job at a milder level; after too low a one, low rank is
measured for some steps.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np

from gradwire.level import Level

# Prices by rank for optimizers with second moments and for others; ranks in between are interpolated in their
# logarithm. The format of the factors hardly counts.
BY_RANK: Final = {4: (1.5, 1.2), 8: (1.3, 1.1), 16: (1.1, 1.05), 32: (1.04, 1.03)}
# Alike for optimizers with and without second moments. Where the residual is mostly noise of batches a job needs fewer
# steps. Below rank 16 a GPT needs more: 1.3 and 1.7 times the steps at waiting energies of 2.2 and 3.4, priced at 1.21
# and 1.38 (docs/results/lossiness.md). `auto` does not go there unless a trade is allowed.
LINEAR: Final = 0.06
SQUARE: Final = 0.015
# Steps at one rank until its residual is full where the price is near 1 (it holds a few steps' gradients), and steps
# that are averaged until the mean is used.
FILLING: Final = 20
SETTLED: Final = 10
# Gain of the average: a mean over about 20 steps.
GAIN: Final = 0.05
# Less than that is next to nothing.
LEAST_FRESH: Final = 1e-4
# Steps after which a rank that did not run again has no measurement. Measuring it again costs FILLING + SETTLED steps.
FORGOTTEN: Final = 1000


class Filling(NamedTuple):
    """What a rank leaves waiting: the mean over `steps` of gradient / (gradient + residual), in energies. Unlike their
    ratio it has no outliers where a gradient is next to zero."""

    fresh: float
    steps: int
    seen: int

    @property
    def waiting(self) -> float:
        """The residual's energy as a multiple of the gradient's."""
        return 1 / max(self.fresh, LEAST_FRESH) - 1


def price_by_rank(rank: int, adaptive: bool) -> float:
    """Of low rank before it has run."""
    prices = [price[0 if adaptive else 1] for price in BY_RANK.values()]
    return float(np.interp(math.log(rank), np.log(list(BY_RANK)), prices))


def price_of_waiting(waiting: float) -> float:
    """Of low rank that leaves so much waiting."""
    return 1 + LINEAR * waiting + SQUARE * waiting**2


class LowRankPrices:
    """The prices of low rank for one job; call `take` once per step."""

    def __init__(self) -> None:
        self._found: dict[int, Filling] = {}
        self._rank = self._run = self._step = 0

    def take(self, ran: Level, residual: float) -> None:
        """A step ran at this level with so much in the residual; 0 or less: not measured."""
        self._step += 1
        self._found = {rank: one for rank, one in self._found.items() if self._step - one.seen < FORGOTTEN}  # 4
        rank = ran.rank if ran.select == "lowrank" else 0
        self._run = self._run + 1 if rank == self._rank else 1
        self._rank = rank
        if not rank or self._run <= FILLING or not 0 < residual < math.inf:  # 1
            return
        before = self._found.get(rank, Filling(1.0, 0, 0))
        steps = before.steps + 1
        fresh = before.fresh + max(GAIN, 1 / steps) * (1 / (1 + residual) - before.fresh)
        self._found[rank] = Filling(fresh, steps, self._step)

    def of(self, rank: int, adaptive: bool) -> float:
        """How many times more steps low rank of this rank needs than uncompressed training."""
        prior = price_by_rank(rank, adaptive)
        known = {known: one.waiting for known, one in self._found.items() if one.steps >= SETTLED}
        if not known:
            return prior  # 3
        nearest = min(known, key=lambda one: abs(math.log(rank / one)))
        waiting = known[nearest]
        if rank >= nearest:  # 2
            return price_of_waiting(waiting * nearest / rank)
        return min(price_of_waiting(waiting * (nearest / rank) ** 2), max(prior, price_of_waiting(waiting)))
