"""Curves: one run's loss against its seconds, with the noise of batches removed. Pure arithmetic.

    trend      a local regression of the loss over the logarithm of the step: a straight line through the steps within
               a third of the present one, the nearer the heavier
    noise      what the batches of a seed add to the loss: plain DDP's losses less their trend. Every contestant of a
               seed has the same batches, so most of its noise is plain DDP's, and is subtracted where it correlates
    lowest     the lowest value of the trend so far

Without this, two runs that differ by rounding alone (fp32 and fp16) differ by up to 40 % in their steps to a loss:
where losses fall slowly, the step that first reaches one is an accident. With it, by 2 %. What remains is the noise of
the trend itself, which is alike for contestants that reach a loss after about the same steps.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import numpy as np
from numpy.typing import NDArray

Losses = NDArray[np.float64]

# Half the width of the regression in the logarithm of the step, and its least half-width in steps.
WIDTH: Final = 0.35
LEAST_STEPS: Final = 3
# A run whose trend ends above this share of its first loss is ruined.
RUINED: Final = 0.9


@dataclass(frozen=True, slots=True)
class Curve:
    """One run: when each step ended, and the trend of its loss."""

    seconds: tuple[float, ...]
    losses: tuple[float, ...]
    lowest: tuple[float, ...]
    first: float

    @classmethod
    def of(cls, seconds: Sequence[float], losses: Sequence[float], noise: Losses | None = None) -> Curve:
        """`noise` is that of the seed's batches. A run whose loss was no longer finite has fewer steps, and an infinite
        loss at its end."""
        kept = np.asarray(losses, np.float64)
        broken = not np.isfinite(kept).all()
        whole = kept[: int(np.argmin(np.isfinite(kept)))] if broken else kept
        smooth = [float(one) for one in trend(quieted(whole, noise))] + ([math.inf] if broken else [])
        return cls(tuple(seconds[: len(smooth)]), tuple(smooth), tuple(accumulate(smooth, min)), float(losses[0]))

    @property
    def end(self) -> float:
        return self.seconds[-1]

    @property
    def ruined(self) -> bool:
        return not self.losses[-1] < RUINED * self.first

    def time_to(self, target: float) -> float | None:
        """Seconds until the trend is at or below the target for the first time."""
        return next((at for at, loss in zip(self.seconds, self.lowest, strict=True) if loss <= target), None)

    def lowest_by(self, seconds: float) -> float:
        place = bisect_right(self.seconds, seconds)
        return self.lowest[place - 1] if place else math.inf


def noise_of(losses: Sequence[float]) -> Losses:
    """What the batches add to plain DDP's losses; zero after one that is not finite."""
    values = np.asarray(losses, np.float64)
    finite = np.isfinite(values)
    steps = len(values) if finite.all() else int(np.argmin(finite))
    noise = np.zeros_like(values)
    noise[:steps] = values[:steps] - trend(values[:steps])
    return noise


def quieted(losses: Losses, noise: Losses | None) -> Losses:
    """Without the part of the noise that these losses share; a run at other weights may share none."""
    if noise is None or not len(losses) or not np.any(noise[: len(losses)]):
        return losses
    shared = noise[: len(losses)]
    own = losses[: len(shared)] - trend(losses[: len(shared)])
    weight = min(1.0, max(0.0, float(own @ shared / (shared @ shared))))
    return np.concatenate([losses[: len(shared)] - weight * shared, losses[len(shared) :]])


def trend(losses: Losses) -> Losses:
    """The local regression at every step."""
    result = np.empty(len(losses))
    places = np.log(np.arange(1, len(losses) + 1))
    for index, place in enumerate(places):
        width = max(WIDTH, math.log1p(LEAST_STEPS / (index + 1)))
        first = int(np.searchsorted(places, place - width))
        last = int(np.searchsorted(places, place + width, side="right"))
        away = places[first:last] - place
        weights = (1 - np.abs(away / width) ** 3) ** 3
        result[index] = _line_at(away, losses[first:last], weights)
    return result


def _line_at(away: Losses, values: Losses, weights: Losses) -> float:
    """The value at zero of the weighted least-squares line."""
    total = weights.sum()
    centre, mean = (weights @ away) / total, (weights @ values) / total
    spread = weights @ (away - centre) ** 2
    slope = (weights @ ((away - centre) * (values - mean))) / spread if spread > 0 else 0.0
    return float(mean - slope * centre)
