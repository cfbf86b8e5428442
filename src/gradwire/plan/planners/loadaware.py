"""Load-aware trees: the default. NetStorm's idea, with every tree seeing what the links already carry.

The gradient is cut into equal parts; each part gets the cheapest pair of trees (sums up, result down) there is:
1. A link's price is its seconds per byte times exp(STEEP * how busy it already is); a member's up- and downlink are
   priced alike. Aggregation sends one sum over each tree edge, so a tree costs the sum of its links' prices
   (this is fractional tree packing by multiplicative weights; it tends to the optimum as parts get smaller).
2. For each candidate root grow both trees (`plan.grow`); take the root whose pair is cheapest.
3. When all parts have trees, take each part out once more and place it again: early parts did not know the later
   ones. Each such round weighs depth more (shallow trees start sooner, narrow ones carry more).
4. Keep the round that the cost model likes best. The simple shapes take part too: stars win unless trees promise
   clearly more, so that this planner is never worse than they are, by that model, and seldom beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gradwire.plan.base import Draft
from gradwire.plan.job import ReductionJob
from gradwire.plan.matrix import Floats, Ints, Matrix
from gradwire.plan.model.cost import forecast
from gradwire.plan.model.load import lay_out
from gradwire.plan.model.routes import Routes
from gradwire.plan.planners.fixed import ring, sharded_star
from gradwire.plan.planners.grow import grow, inverse
from gradwire.plan.planners.weighted import weighted_star
from gradwire.plan.trees import tree_of
from gradwire.types import Tree

# exp(STEEP) is the price of a full link against an idle one. Over six draws of the 9-site network the busiest link was
# on average 5 % above the optimum at 6, 3.1 % at 10, 2.8 % at 16; on ten AWS regions, where delay counts as much as
# load, 10 gives 1.87 s and 16 gives 2.10.
STEEP = 10.0
# Work bounds: array steps are size * parts * rounds; these keep 100 sites below 50 ms and 1,000 below 1 s.
TINY, SMALL, MEDIUM = 12, 24, 200
# Stars are worth a look where most pairs can talk; elsewhere relays would carry them.
DENSE = 0.8
# Trees of several hops must promise this much more than stars. Every hop sums and passes on, in many small frames,
# which costs more than the model counts: ten AWS regions, 2 % promised, in the lab 0.84 of the stars' speed.
DEEPER = 1.1


@dataclass(frozen=True, slots=True)
class Effort:
    """How hard to search: parts the gradient is cut into, candidate roots per part, a weight of depth per round."""

    parts: int
    roots: int
    depths: tuple[float, ...]


def effort_for(size: int, chunks: int) -> Effort:
    if size <= TINY:
        return Effort(min(48, chunks), size, (0.0, 0.1, 0.4, 1.0, 3.0))
    if size <= SMALL:
        return Effort(min(24, chunks), size, (0.0, 0.3, 1.0))
    return Effort(min(6, chunks), 2 if size <= MEDIUM else 1, (0.4,))


def loadaware(matrix: Matrix, job: ReductionJob) -> Draft:
    """The best of the packed trees and the simple shapes."""
    routes = Routes(matrix)
    best: Draft | None = None
    least = np.inf
    for name, trees, handicap in candidates(matrix, job):
        load = lay_out(matrix, trees, job, routes)
        seen = forecast(matrix, load, job, routes, beat=least / handicap)
        if best is None or handicap * seen.seconds < least:
            least = handicap * seen.seconds
            roots = len({tree.root for tree in trees})
            best = Draft(trees, f"{name}, {len(trees)} trees over {roots} roots", seen, load)
    assert best is not None
    return best


def candidates(matrix: Matrix, job: ReductionJob) -> Iterator[tuple[str, tuple[Tree, ...], float]]:
    """Named sets of trees to choose from, simplest first, and how many times their forecast is held against them."""
    size = matrix.size
    if (matrix.rate > 0).sum() >= DENSE * size * (size - 1):
        yield "stars by capacity", weighted_star(matrix, job).trees, 1.0
        # Among many members who can all talk, and are held back by their own uplinks rather than by links between
        # them, n stars spread the load perfectly, which the few trees affordable here cannot; nor can they among a
        # great many, whatever holds them back.
        capped = np.isfinite(matrix.up).all() and np.isfinite(matrix.down).all()
        if size > MEDIUM or (size > SMALL and capped):
            return
    effort = effort_for(size, job.chunks(1.0))
    packing = Packing(matrix, job, effort)
    for depth in effort.depths:
        yield f"packed by load (depth {depth:g})", packing.trees(depth), DEEPER
    if size <= SMALL:
        yield "sharded star", sharded_star(matrix, job).trees, 1.0
        yield "ring", ring(matrix, job).trees, DEEPER


class Packing:
    """Parts of the gradient and the trees they were given; knows how busy that makes every link."""

    def __init__(self, matrix: Matrix, job: ReductionJob, effort: Effort) -> None:
        self._size, self._effort = matrix.size, effort
        self._part = job.nbytes * job.wire(matrix.size) / effort.parts
        self._per_link = inverse(matrix.rate)
        self._per_up, self._per_down = 1.0 / matrix.up, 1.0 / matrix.down
        # One chunk's way counts too: what a hop costs in delay, as if it were part of the transfer.
        self._delay = matrix.rtprop / 2
        self._busy_link = np.zeros_like(matrix.rate)
        self._busy_up, self._busy_down = np.zeros(matrix.size), np.zeros(matrix.size)
        self._goal = _least_time(matrix, job)
        self._placed: list[tuple[int, Ints, Ints]] = []

    def trees(self, depth: float) -> tuple[Tree, ...]:
        """Every part placed with this weight of depth: for the first time, or again beside all the others."""
        for part in range(self._effort.parts):
            if part < len(self._placed):
                self._carry(*self._placed[part], sign=-1.0)
                self._placed[part] = self._place(depth)
            else:
                self._placed.append(self._place(depth))
        return _merged(self._placed, self._effort.parts)

    def _place(self, depth: float) -> tuple[int, Ints, Ints]:
        """Steps 1 and 2 for one part."""
        steep = STEEP / self._goal
        with np.errstate(over="ignore", invalid="ignore"):
            link = self._per_link * np.exp(np.minimum(steep * self._busy_link, 60.0))
            up = self._per_up * np.exp(np.minimum(steep * self._busy_up, 60.0))
            down = self._per_down * np.exp(np.minimum(steep * self._busy_down, 60.0))
        price = (link + up[:, None] + down[None, :]) * self._part + self._delay / self._effort.parts
        more_up = up * self._part * np.expm1(np.minimum(steep * self._per_up * self._part, 3.0))
        more_down = down * self._part * np.expm1(np.minimum(steep * self._per_down * self._part, 3.0))
        roots = self._roots(price)
        both, cost = grow(np.stack((price.T, price)), roots, depth, np.stack((more_down, more_up)))
        best = int((cost[: len(roots)] + cost[len(roots) :]).argmin())
        chosen = int(roots[best]), both[best], both[len(roots) + best]
        self._carry(*chosen, sign=1.0)
        return chosen

    def _roots(self, price: Floats) -> Ints:
        """All members, or those whose links are cheapest now."""
        if self._effort.roots >= self._size:
            return np.arange(self._size)
        both = price + price.T
        return np.argpartition(np.median(both, axis=1), self._effort.roots)[: self._effort.roots]

    def _carry(self, root: int, parents: Ints, sources: Ints, sign: float) -> None:
        members = np.delete(np.arange(self._size), root)
        for senders, receivers in ((members, parents[members]), (sources[members], members)):
            self._busy_link[senders, receivers] += sign * self._part * self._per_link[senders, receivers]
            self._busy_up += sign * self._part * self._per_up * np.bincount(senders, minlength=self._size)
            self._busy_down += sign * self._part * self._per_down * np.bincount(receivers, minlength=self._size)


def _least_time(matrix: Matrix, job: ReductionJob) -> float:
    """No plan is faster: every member must let one copy of the data out and one in."""
    rate = matrix.effective()
    out = np.minimum(rate.sum(axis=1), matrix.up).min()
    into = np.minimum(rate.sum(axis=0), matrix.down).min()
    return job.nbytes * job.wire(1) / float(min(out, into))


def _merged(placed: list[tuple[int, Ints, Ints]], parts: int) -> tuple[Tree, ...]:
    """Equal trees become one with the larger share."""
    groups: dict[tuple[int, bytes, bytes], list[tuple[int, Ints, Ints]]] = {}
    for part in placed:
        groups.setdefault((part[0], part[1].tobytes(), part[2].tobytes()), []).append(part)
    return tuple(tree_of(root, up, len(same) / parts, down) for same in groups.values() for root, up, down in same[:1])
