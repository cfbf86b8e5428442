"""MeasuredNetwork: what a running job knows of the links between its ranks, as bounds for predictions.

In: reports of ranks about their links. Out: two matrices. Of a link that was never filled only a lower bound of its
rate is known. So a way to sum that is in use is predicted on the `hopeful` matrix, where such links carry far more than
was seen, and one that is not in use on the `cautious` matrix, where they carry no more: a difference between the two
predictions does not come from links that nobody measured. Plans have to suit both (plan/plan_regret.py).

Rates are those of transfers that ran side by side, so pairs of ranks that share a line have their part of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from gradwire.plan.matrix import Floats, Matrix
from gradwire.types import LinkFacts

# What a link that was never filled may carry, as a multiple of what was seen. Chosen: a transfer that is as short as
# its round trip shows half of the rate, one of a packet next to nothing.
HOPE: Final = 8.0


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredNetwork:
    """`rate[i, j]` where the path limited it, else NaN; `floor[i, j]` at least; `rtprop` in seconds, NaN where it is
    unknown; `up[i]` is the most that rank i sent to all others at the same time, infinite where that is unknown."""

    rate: Floats
    floor: Floats
    rtprop: Floats
    up: Floats

    @classmethod
    def of(cls, world_size: int, reports: Mapping[tuple[int, int], LinkFacts]) -> MeasuredNetwork:
        """From the last report of each ordered pair."""
        pair = (world_size, world_size)
        rate, rtprop, floor, up = np.full(pair, np.nan), np.full(pair, np.nan), np.zeros(pair), np.zeros(world_size)
        for (source, destination), seen in reports.items():
            rate[source, destination] = seen.rate or np.nan
            rtprop[source, destination] = seen.rtprop or np.nan
            floor[source, destination] = seen.floor
            up[source] = max(up[source], seen.together)
        rtprop = np.fmin(rtprop, rtprop.T)  # a path has one round trip, whoever measures it
        return cls(rate, floor, rtprop, np.where(up > 0, up, np.inf))

    @property
    def size(self) -> int:
        return len(self.rate)

    @property
    def known(self) -> int:
        """Pairs whose rate is known."""
        return int(np.isfinite(self.rate).sum())

    @property
    def complete(self) -> bool:
        """Whether something is known of every pair."""
        off = ~np.eye(self.size, dtype=bool)
        return bool(((np.isfinite(self.rate) | (self.floor > 0)) & np.isfinite(self.rtprop))[off].all())

    def cautious(self) -> Matrix:
        """Links carry no more than was seen, and no rank sends or receives more than its links did together."""
        bounds = self.bounds()
        up, down = (np.maximum(bounds.rate.sum(axis=axis), 1.0) for axis in (1, 0))
        return replace(bounds, up=np.minimum(self.up, up), down=down)

    def hopeful(self) -> Matrix:
        """Links that were never filled carry HOPE times of what was seen."""
        bounds = self.bounds()
        return replace(bounds, rate=np.where(np.isfinite(self.rate), bounds.rate, HOPE * bounds.rate))

    def bounds(self) -> Matrix:
        """Of every link what was seen, with full confidence where that was its limit. What a rank sends in all is
        limited only where all of its links were filled."""
        filled = np.isfinite(self.rate)
        rate, longest = np.where(filled, self.rate, self.floor), np.nanmax(self.rtprop, initial=0.0)
        np.fill_diagonal(rate, 0.0)
        all_filled = (filled | np.eye(self.size, dtype=bool)).all(axis=1)
        return Matrix.of(
            rate,
            np.where(np.isfinite(self.rtprop), self.rtprop, longest),
            up=np.where(all_filled, np.minimum(self.up, np.maximum(rate.sum(axis=1), 1.0)), np.inf),
            confidence=np.where(filled, 1.0, 0.5),
        )
