"""Period price: how many times more steps training needs for the same loss with H local steps on W ranks. Pure.

What drives it is gradient noise. A synchronous step averages the noise of W batches; in a round every rank follows its
own noise, and replicas move apart until the next average:

    price = 1 + spread x (W - 1) ^ share x H ^ growth,   at most W

W - 1 parts of W of the noise's variance are what a synchronous step would have removed. Exponents depend on the
optimizer. Adam and its like divide by the root of squared gradients: all their steps have about the same length, and
more noise makes them useful for a smaller part, already in short rounds (a small growth, a large share). Steps of SGD
are as long as its gradients, and replicas move apart in proportion to H. More than W times the steps it cannot take:
one rank alone, with one W-th of the samples, would not be slower.

In the running job, ranks see how noisy it is: changes of the weights that have little in common (a small cosine) are
noise. The excess is scaled by how far the observed cosine is from 1, compared with that of the jobs from which `spread`
comes. Constants: `benchmarks/local_steps.py` (docs/results/local-steps.md), 2, 4 and 8 workers, one seed.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from gradwire.types import RoundNorms

# (spread, share, growth) of optimizers with second moments, and of others: least squares over the table, H from 10 on;
# they are off by 0.06 and 0.18 in the price, root mean square.
SPREAD: Final = ((0.058, 0.75, 0.3), (0.0089, 0.5, 0.95))
# The cosine between two ranks' rounds in the same runs, likewise, for this many steps; a long round has more in common.
LENGTHS: Final = (10, 20, 50, 100)
USUAL_COSINE: Final = ((0.26, 0.27, 0.41, 0.62), (0.16, 0.11, 0.10, 0.14))
# One observed round may be an outlier: the correction is limited, and averaged over about eight rounds.
LEAST_FACTOR, GREATEST_FACTOR = 0.5, 2.0
GAIN: Final = 0.125


def prior_price(sync_every: int, world_size: int, adaptive: bool, factor: float = 1.0) -> float:
    """`factor` scales the excess: 1, or what was observed."""
    if sync_every <= 1 or world_size < 2:
        return 1.0
    spread, share, growth = SPREAD[0 if adaptive else 1]
    excess = factor * spread * math.pow(world_size - 1, share) * math.pow(sync_every, growth)
    return min(1 + excess, float(world_size))


def usual_cosine(steps: int, adaptive: bool) -> float:
    """Of a round of this many steps: between the two next measured lengths."""
    return float(np.interp(math.log(max(1, steps)), np.log(LENGTHS), USUAL_COSINE[0 if adaptive else 1]))


def cosine_of(divergence: RoundNorms, world_size: int) -> float:
    """The mean cosine between two ranks' changes of the weights. The mean of W vectors of norm n and cosine c has the
    squared norm n^2 (1 + (W - 1) c) / W."""
    if divergence.own <= 0 or world_size < 2:
        return 1.0
    return (world_size * divergence.shared / divergence.own - 1) / (world_size - 1)


class PeriodPrice:
    """The price for one job; `take` what every round showed. `world_size` may change: ranks are lost and join."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self._adaptive = True  # the more cautious assumption, until the optimizer is known
        self._rounds = 0
        self.factor = 1.0

    def take(self, divergence: RoundNorms | None, adaptive: bool | None) -> None:
        if adaptive is not None:
            self._adaptive = adaptive
        if divergence is None or not math.isfinite(divergence.own) or divergence.own <= 0:
            return
        usual = usual_cosine(divergence.steps, self._adaptive)
        found = (1 - cosine_of(divergence, self.world_size)) / (1 - usual)
        found = min(max(found, LEAST_FACTOR), GREATEST_FACTOR)
        self._rounds += 1
        self.factor += max(GAIN, 1 / (self._rounds + 1)) * (found - self.factor)

    def of(self, sync_every: int) -> float:
        return prior_price(sync_every, self.world_size, self._adaptive, self.factor)
