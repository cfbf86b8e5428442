"""Sites: every site sums first, then load-aware trees between sites carry one copy of each sum.

Ranks of a site share the line to the other sites. A planner that takes every pair of ranks for a link of its own does
not see that, so trees are made between sites:

1. The network between sites: what all pairs of two sites carry together, and their shortest round trip.
2. `loadaware` makes trees over it.
3. In each tree one member leads its site: the others send to it and receive from it. Trees are repeated, each time with
   the next member of every site, so that all members of a site carry an equal part.

Sites come from the job, or from the matrix (`hierarchy.groups_of`). Where the job names them, the predicted time counts
what their lines carry together: sums inside sites, then those between them. Of sites that the matrix shows nothing is
known but the links, so the plan's time is predicted by these, as every planner's is.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from gradwire.plan.base import Draft
from gradwire.plan.job import ReductionJob
from gradwire.plan.matrix import Floats, Matrix
from gradwire.plan.model.cost import PlanCost, forecast
from gradwire.plan.model.load import lay_out
from gradwire.plan.model.routes import Routes
from gradwire.plan.planners.fixed import sharded_star
from gradwire.plan.planners.hierarchy import groups_of
from gradwire.plan.planners.loadaware import loadaware
from gradwire.plan.trees import sources_of
from gradwire.types import Tree

# A tree's part is not divided among more members of a site: each tree costs every member frames of its own.
MOST_LEADERS = 4


def sites(matrix: Matrix, job: ReductionJob) -> Draft:
    """Trees between sites, extended to their members; load-aware trees where no site has several members."""
    groups = groups_of(matrix, job)
    if len(groups) in (1, matrix.size):
        return loadaware(matrix, job)
    between = loadaware(between_sites(matrix, groups), job)  # 1, 2
    leaders = min(MOST_LEADERS, max(len(group) for group in groups))
    trees = tuple(_extended(tree, groups, turn, leaders) for tree, turn in product(between.trees, range(leaders)))  # 3
    reason = f"{len(groups)} sites sum internally, then {between.reason} between sites"
    if not job.sites:
        return Draft(trees, reason)
    assert between.cost is not None
    inside = max(_inside(matrix, group, job) for group in groups)
    cost = PlanCost(between.cost.seconds + inside, between.cost.busiest, between.cost.busy, between.cost.path + inside)
    return Draft(trees, reason, cost)


def between_sites(matrix: Matrix, groups: Sequence[Sequence[int]]) -> Matrix:
    """The network between sites; each has the name of its first member."""
    rate, rtprop = np.zeros((2, len(groups), len(groups)))
    for (a, own), (b, other) in product(enumerate(groups), enumerate(groups)):
        if a != b:
            pairs = np.ix_(own, other)
            rate[a, b] = matrix.rate[pairs].sum()
            rtprop[a, b] = matrix.rtprop[pairs].min()
    names = [matrix.members[group[0]] for group in groups]
    return Matrix.of(rate, rtprop, names, up=_together(matrix.up, groups), down=_together(matrix.down, groups))


def _together(capacity: Floats, groups: Sequence[Sequence[int]]) -> list[float]:
    return [float(capacity[list(group)].sum()) for group in groups]


def _extended(tree: Tree, groups: Sequence[Sequence[int]], turn: int, leaders: int) -> Tree:
    """A tree over all members of the sites, led by the member whose turn it is."""
    leader = [group[turn % len(group)] for group in groups]
    inside = {member: leader[site] for site, group in enumerate(groups) for member in group}

    def over_members(edges: dict[int, int]) -> dict[int, int]:
        return inside | {leader[site]: leader[above] for site, above in edges.items()}

    sources = over_members(sources_of(tree)) if tree.sources else {}
    return Tree(leader[tree.root], over_members(tree.parents), tree.share / leaders, sources)


def _inside(matrix: Matrix, group: Sequence[int], job: ReductionJob) -> float:
    """Seconds of a sum inside a site, whose members lead in turn."""
    if len(group) == 1:
        return 0.0
    site = matrix.only([matrix.members[member] for member in group])
    routes = Routes(site)
    return forecast(site, lay_out(site, sharded_star(site, job).trees, job, routes), job, routes).seconds
