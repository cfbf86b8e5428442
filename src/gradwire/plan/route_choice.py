"""Route choice: whether trees would sum the gradient clearly sooner than the flat exchange that a job uses. Pure.

In: what is measured of the links, the sites, what is to be summed, and how it is summed now. Out: the predicted seconds
of the flat exchange and of the best plan, that plan, and the reason in words.

    1. Where links are about equal and ranks are in one place, trees have nothing to avoid: no plan is made.
    2. The flat exchange is a plan too: a ring in rank order (the process group's own sum), or shards. It is predicted
       by the same model, on the network at its best.
    3. Plans are made for the network as it was seen at least: trees over all ranks, and, where sites have several
       ranks, sites first. The quicker one counts.
    4. It is worth trying if it takes at most WORTH of the flat exchange's time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Final, Literal

import numpy as np

from gradwire.plan.job import ReductionJob
from gradwire.plan.matrix import Matrix
from gradwire.plan.measured_network import MeasuredNetwork
from gradwire.plan.planners.registry import make_plan
from gradwire.types import Plan
from gradwire.units import Rate, Seconds

# How ranks sum without trees: the process group's ring, or every rank sums a shard.
FlatExchange = Literal["ring", "sharded"]
# A plan must be predicted to take at most this share of the time: predictions of the lab's networks were within 0.3 of
# what was measured (`plan.model.cost`), and every hop costs processor time that the model does not count.
WORTH: Final = 0.75
# Links are unequal if the slowest takes this many times as long as the median one. Rates of equal links that share a
# switch were measured up to 1.5 apart.
UNEQUAL: Final = 2.0


@dataclass(frozen=True, slots=True)
class RouteChoice:
    """Predicted seconds of an exchange, and the plan that is predicted to be clearly better; None: stay flat."""

    flat: float
    planned: float
    plan: Plan | None
    reason: str


def choose_routes(
    network: MeasuredNetwork,
    jobs: tuple[ReductionJob, ReductionJob],
    flat: FlatExchange,
    sites: Sequence[Sequence[int]],
) -> RouteChoice:
    """`jobs` are what the flat exchange and what trees sum: not every level can be summed in a tree. `sites` are the
    ranks of each site; all ranks are in one of them."""
    why = uniform(network, sites)  # 1
    if why:
        return RouteChoice(0.0, 0.0, None, why)
    best = network.optimistic()
    if flat == "ring":
        best = _shared_lines(best, sites)
    flat_job, job = jobs
    now = make_plan(best, flat_job, flat).predicted  # 2
    plans = [make_plan(network.cautious(), job, "loadaware")]  # 3
    if 1 < len(sites) < network.size:
        named = replace(job, sites=site_names(sites))
        plans.append(make_plan(network.cautious(), named, "sites"))
    plan = min(plans, key=lambda one: one.predicted)
    compared = f"{Seconds(plan.predicted)} along trees ({plan.planner}), {Seconds(now)} as a flat exchange"
    if plan.predicted > WORTH * now:  # 4
        return RouteChoice(now, plan.predicted, None, f"trees would not be clearly better: {compared}")
    return RouteChoice(now, plan.predicted, plan, f"{compared}: {_slowest(network)}")


def uniform(network: MeasuredNetwork, sites: Sequence[Sequence[int]]) -> str:
    """Why no plan can be better; empty where one may be."""
    if network.size < 3:
        return "two ranks have one way to sum"
    if 1 < len(sites) < network.size:
        return ""
    known = network.rate[np.isfinite(network.rate)]
    if not known.size:
        return "no link was filled yet: of every link only a lower bound is known"
    # Links of which only a lower bound is known count where they were seen to be faster.
    usual = float(np.median(np.fmax(network.rate, network.floor)[~np.eye(network.size, dtype=bool)]))
    if usual < UNEQUAL * known.min():
        return f"links are about equal: {Rate(usual)} usually, {Rate(float(known.min()))} at the slowest"
    return ""


def site_names(sites: Sequence[Sequence[int]]) -> Mapping[int, str]:
    """Rank -> name of its site."""
    return {rank: f"site{number}" for number, site in enumerate(sites) for rank in site}


def _shared_lines(matrix: Matrix, sites: Sequence[Sequence[int]]) -> Matrix:
    """In a ring one pair crosses from site to site and has the whole line, which others shared when it was measured."""
    rate = matrix.rate.copy()
    for own, other in product(sites, sites):
        if own is not other:
            pairs = np.ix_(list(own), list(other))
            rate[pairs] = matrix.rate[pairs].sum()
    return replace(matrix, rate=rate)


def _slowest(network: MeasuredNetwork) -> str:
    """The slowest known link, in words."""
    if not network.known:
        return "no link was filled yet"
    source, destination = np.unravel_index(int(np.nanargmin(network.rate)), network.rate.shape)
    rate = Rate(float(network.rate[source, destination]))
    return f"rank {source} sends to rank {destination} at {rate}"
