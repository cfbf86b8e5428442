"""Load-aware planner, the default: NetStorm's idea, but each tree takes the load of the other trees into account.

The gradient is cut into equal parts; each part gets the cheapest pair of trees (for sums and for results):
1. A link's price is its seconds per byte times exp(STEEP * how busy it already is); the up- and downlinks of members
   are priced in the same way. One sum is sent over each tree edge, so a tree costs the sum of its links' prices
   (this is fractional tree packing by multiplicative weights; it approaches the optimum as parts get smaller).
2. For each candidate root grow both trees (`plan.planners.grow`); choose the root whose pair is cheapest.
3. When all parts have trees, remove each part once more and place it again, because early parts did not know the later
   ones. Each such round gives depth more weight (shallow trees start sooner, narrow ones carry more).
4. Keep the round with the lowest predicted cost. Simple topologies are candidates too: stars are chosen unless trees
   are clearly better, so by that model this planner is never worse than they are.
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

# exp(STEEP) is the price of a full link relative to an idle one. Over six draws of the 9-site network the busiest link
# was on average 5 % above the optimum at 6, 3.1 % at 10, 2.8 % at 16; on ten AWS regions, where delay matters as much
# as load, 10 gives 1.87 s and 16 gives 2.10.
STEEP = 10.0
# Limits of the search: array steps are size * parts * rounds; these keep 100 sites below 50 ms and 1,000 below 1 s.
TINY, SMALL, MEDIUM = 12, 24, 200
# Stars are candidates where at least this share of the pairs has a link; elsewhere they would need relays.
DENSE = 0.8
# Trees of several hops must be predicted this much faster than stars. Every hop sums and forwards many small frames,
# which costs more than the model counts: on ten AWS regions 2 % were predicted, and the lab measured 0.84x.
DEEPER = 1.1


@dataclass(frozen=True, slots=True)
class Effort:
    """Extent of the search: parts of the gradient, candidate roots per part, the weight of depth in each round."""

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
    """The best of the packed trees and the simple topologies."""
    routes = Routes(matrix)
    best: Draft | None = None
    least = np.inf
    for name, trees, handicap in candidates(matrix, job):
        load = lay_out(matrix, trees, job, routes)
        cost = forecast(matrix, load, job, routes, beat=least / handicap)
        if best is None or handicap * cost.seconds < least:
            least = handicap * cost.seconds
            roots = len({tree.root for tree in trees})
            best = Draft(trees, f"{name}, {len(trees)} trees over {roots} roots", cost, load)
    assert best is not None
    return best


def candidates(matrix: Matrix, job: ReductionJob) -> Iterator[tuple[str, tuple[Tree, ...], float]]:
    """Named sets of trees to choose from, simplest first, each with a factor on its predicted cost."""
    size = matrix.size
    if (matrix.rate > 0).sum() >= DENSE * size * (size - 1):
        yield "stars by capacity", weighted_star(matrix, job).trees, 1.0
        # In a full mesh of many members, limited by their uplinks and not by links between them, n stars distribute the
        # load evenly. The few trees for which the search has time do not. The same holds for more than MEDIUM members,
        # whatever limits them.
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
    """Parts of the gradient and their trees, and the load of every link."""

    def __init__(self, matrix: Matrix, job: ReductionJob, effort: Effort) -> None:
        self._size, self._effort = matrix.size, effort
        self._part = job.nbytes * job.wire(matrix.size) / effort.parts
        self._per_link = inverse(matrix.rate)
        self._per_up, self._per_down = 1.0 / matrix.up, 1.0 / matrix.down
        # The delay of a hop counts as if it were part of the transfer.
        self._delay = matrix.rtprop / 2
        self._busy_link = np.zeros_like(matrix.rate)
        self._busy_up, self._busy_down = np.zeros(matrix.size), np.zeros(matrix.size)
        self._goal = _least_time(matrix, job)
        self._placed: list[tuple[int, Ints, Ints]] = []

    def trees(self, depth: float) -> tuple[Tree, ...]:
        """Place every part with this weight of depth: for the first time, or again next to all others."""
        for part in range(self._effort.parts):
            if part < len(self._placed):
                self._add_load(*self._placed[part], sign=-1.0)
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
        self._add_load(*chosen, sign=1.0)
        return chosen

    def _roots(self, price: Floats) -> Ints:
        """Candidate roots: all members, or those with the cheapest links."""
        if self._effort.roots >= self._size:
            return np.arange(self._size)
        both = price + price.T
        return np.argpartition(np.median(both, axis=1), self._effort.roots)[: self._effort.roots]

    def _add_load(self, root: int, parents: Ints, sources: Ints, sign: float) -> None:
        members = np.delete(np.arange(self._size), root)
        for senders, receivers in ((members, parents[members]), (sources[members], members)):
            self._busy_link[senders, receivers] += sign * self._part * self._per_link[senders, receivers]
            self._busy_up += sign * self._part * self._per_up * np.bincount(senders, minlength=self._size)
            self._busy_down += sign * self._part * self._per_down * np.bincount(receivers, minlength=self._size)


def _least_time(matrix: Matrix, job: ReductionJob) -> float:
    """A lower bound of any plan: every member must send and receive one copy of the data."""
    rate = matrix.effective()
    out = np.minimum(rate.sum(axis=1), matrix.up).min()
    into = np.minimum(rate.sum(axis=0), matrix.down).min()
    return job.nbytes * job.wire(1) / float(min(out, into))


def _merged(placed: list[tuple[int, Ints, Ints]], parts: int) -> tuple[Tree, ...]:
    """Equal trees become one tree with the sum of their shares."""
    groups: dict[tuple[int, bytes, bytes], list[tuple[int, Ints, Ints]]] = {}
    for part in placed:
        groups.setdefault((part[0], part[1].tobytes(), part[2].tobytes()), []).append(part)
    return tuple(tree_of(root, up, len(same) / parts, down) for same in groups.values() for root, up, down in same[:1])
