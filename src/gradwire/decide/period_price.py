"""Period price: how many times more steps training needs for the same loss with H local steps on W ranks. Pure.

What drives it is gradient noise. A synchronous step averages the noise of W batches; in a round every rank follows its
own noise, and replicas move apart until the next average:

    price = 1 + spread x log2(W) x H ^ growth,   at most W

Every doubling of the ranks halves the noise that a synchronous step would have, and costs about the same again. The
growth depends on the optimizer. Adam and its like divide by the root of squared gradients, so all their steps have
about the same length and noise adds up like a random walk, slower than in proportion to H. Steps of SGD are as long as
its gradients, and the drift is in proportion to H. More than W times the steps it cannot take: one rank alone, with one
W-th of the samples, would not be slower.

In the running job, ranks see how noisy it is: changes of the weights that have little in common (a small cosine) are
noise. The excess is scaled by how far the observed cosine is from 1, compared with that of the jobs from which `spread`
comes. Constants: `benchmarks/local_steps.py` (docs/results/local-steps.md), 2, 4 and 8 workers, one seed.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from gradwire.types import Divergence

# (spread, growth) of optimizers with second moments, and of others: least squares over the table, H from 10 on.
SPREAD: Final = ((0.034, 0.4), (0.0065, 1.0))
# The cosine between two ranks' rounds in the same runs, likewise, for so many steps; a long round has more in common.
LENGTHS: Final = (10, 20, 50, 100)
USUAL_COSINE: Final = ((0.30, 0.30, 0.43, 0.63), (0.16, 0.11, 0.10, 0.14))
# One observed round may be an outlier: the correction is limited, and averaged over about eight rounds.
LEAST_FACTOR, GREATEST_FACTOR = 0.5, 2.0
GAIN: Final = 0.125


def prior_price(sync_every: int, world_size: int, adaptive: bool, factor: float = 1.0) -> float:
    """`factor` scales the excess: 1, or what was observed."""
    if sync_every <= 1 or world_size < 2:
        return 1.0
    spread, growth = SPREAD[0 if adaptive else 1]
    excess = factor * spread * math.log2(world_size) * math.pow(sync_every, growth)
    return min(1 + excess, float(world_size))


def usual_cosine(steps: int, adaptive: bool) -> float:
    """Of a round of so many steps: between the two next measured lengths."""
    return float(np.interp(math.log(max(1, steps)), np.log(LENGTHS), USUAL_COSINE[0 if adaptive else 1]))


def cosine_of(divergence: Divergence, world_size: int) -> float:
    """The mean cosine between two ranks' changes of the weights. The mean of W vectors of norm n and cosine c has the
    squared norm n^2 (1 + (W - 1) c) / W."""
    if divergence.own <= 0 or world_size < 2:
        return 1.0
    return (world_size * divergence.shared / divergence.own - 1) / (world_size - 1)


class PeriodPrice:
    """The price for one job; `take` what every round showed."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._adaptive = True  # the more cautious assumption, until the optimizer is known
        self._rounds = 0
        self.factor = 1.0

    def take(self, divergence: Divergence | None, adaptive: bool | None) -> None:
        if adaptive is not None:
            self._adaptive = adaptive
        if divergence is None or not math.isfinite(divergence.own) or divergence.own <= 0:
            return
        usual = usual_cosine(divergence.steps, self._adaptive)
        found = (1 - cosine_of(divergence, self._world_size)) / (1 - usual)
        found = min(max(found, LEAST_FACTOR), GREATEST_FACTOR)
        self._rounds += 1
        self.factor += max(GAIN, 1 / (self._rounds + 1)) * (found - self.factor)

    def of(self, sync_every: int) -> float:
        return prior_price(sync_every, self._world_size, self._adaptive, self.factor)
