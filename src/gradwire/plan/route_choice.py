"""Route choice: whether trees would sum the gradient clearly sooner than the flat exchange that a job uses. Pure.

In: what is measured of the links, the sites, and what is summed at every level that the job may use. Out: the predicted
seconds of each level as a flat exchange and along trees, the best plan, and the reason in words.

    1. Where links are about equal and ranks are in one place, trees have nothing to avoid: no plan is made.
    2. The flat exchange is a plan too: a ring in rank order (the process group's own sum), or shards. It is predicted
       by the same model, with links that were never filled at their best.
    3. Plans are made for the network as it was seen at least: trees over all ranks, and, where sites have several
       ranks, sites first. Each is made for the present level and for next to no bytes; what other levels take is
       linear in their bytes between the two. The planner whose best level is quickest counts.
    4. Members handle every frame on one thread, which no link shows: what that adds is predicted beside the network's
       time.
    5. It is worth trying if its best level takes at most WORTH of the time of the flat exchange's best level: trees
       cannot sum every level, and where indices are agreed on first a sum travels twice, so the best levels differ.
    6. Of links that were never filled only lower bounds are known. Another plan is made as if they carried far more,
       and of the two the one is taken that is least wrong in either case, if it is worth trying where they do not.
       Where trees are not clearly better than the flat exchange if links carry no more than was seen, but not far
       worse either, they are tried nevertheless if they are clearly better otherwise: steps along them fill those
       links.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Final

import numpy as np

from gradwire.plan.job import ReductionJob
from gradwire.plan.matrix import Matrix
from gradwire.plan.measured_network import MeasuredNetwork
from gradwire.plan.membership.replan import predicted_seconds
from gradwire.plan.plan_regret import least_regret
from gradwire.plan.planners.registry import make_plan
from gradwire.plan.tree_forecast import LevelJob, TreeForecast, between, thin_job
from gradwire.types import Plan
from gradwire.units import Rate, Seconds

# A plan must be predicted to take at most this share of the time. Predictions of the lab's networks were within 0.3 of
# what was measured (`plan.model.cost`), in both directions: steps decide.
WORTH: Final = 0.9
# Links are unequal if the slowest takes this many times as long as the median one. Rates of equal links that share a
# switch were measured up to 1.5 apart.
UNEQUAL: Final = 2.0
# Where unfilled links decide, trees may take so many times of it if those carry no more than was seen: a trial takes
# eleven steps, the next one comes after 500, and trials for nothing may take a hundredth of a job.
RISKED: Final = 1.45


@dataclass(frozen=True, slots=True)
class LevelSeconds:
    """Predicted seconds of one level's exchange: between all ranks, along trees, and what processors add to those."""

    flat: float
    trees: float
    work: float = 0.0


@dataclass(frozen=True, slots=True)
class RouteChoice:
    """Predicted seconds of the best flat exchange and of the best one along trees, and the plan that is predicted to be
    clearly better; None: stay flat. `levels` are the seconds of each job, in their order."""

    flat: float
    planned: float
    plan: Plan | None
    reason: str
    levels: tuple[LevelSeconds, ...] = ()


def choose_routes(network: MeasuredNetwork, jobs: Sequence[LevelJob], sites: Sequence[Sequence[int]]) -> RouteChoice:
    """`jobs` are the levels that may be used, the present one first. `sites` are the ranks of each site; all ranks are
    in one of them."""
    why = uniform(network, sites)  # 1
    if why:
        return RouteChoice(0.0, 0.0, None, why)
    flat = _flat_seconds(network.hopeful(), jobs, sites)  # 2
    now, cautious = min(flat), network.cautious()
    trees = seen = TreeForecast.of(cautious, jobs, sites)  # 3
    compared = f"{Seconds(seen.seconds)} along trees ({seen.planner}), {Seconds(now)} as a flat exchange"
    plan, why = seen.plan(cautious), _slowest(network)
    most = WORTH * now if seen.seconds <= WORTH * now else RISKED * now
    if seen.seconds <= most and network.known < network.size * (network.size - 1):  # 6
        hoped = TreeForecast.of(network.hopeful(), jobs, sites)
        robust = _robust(network, plan, hoped.plan(network.hopeful()), seen.job, most / seen.seconds)
        if most > now and robust is not plan and hoped.seconds <= WORTH * now:
            trees, why = hoped, f"{Seconds(hoped.seconds)} if links carry more than was seen"
        plan = robust
    levels = tuple(LevelSeconds(*one) for one in zip(flat, trees.network, trees.work, strict=True))
    if trees.seconds > WORTH * now:  # 5
        return RouteChoice(now, trees.seconds, None, f"trees would not be clearly better: {compared}", levels)
    return RouteChoice(now, trees.seconds, plan, f"{compared}: {why}", levels)


def _robust(network: MeasuredNetwork, plan: Plan, hopeful: Plan, job: ReductionJob, most: float) -> Plan:
    """A plan for lower bounds, or one for more, which may take `most` times as long where the bounds are all there
    is."""
    cautious = network.cautious()
    seconds = predicted_seconds(cautious, hopeful, job)
    if seconds > most * predicted_seconds(cautious, plan, job):
        return plan
    return least_regret((plan, replace(hopeful, predicted=seconds)), (cautious, network.hopeful()), job)


def _flat_seconds(best: Matrix, jobs: Sequence[LevelJob], sites: Sequence[Sequence[int]]) -> list[float]:
    """Of each job, as a flat exchange."""
    shared = _shared_lines(best, sites)
    most = max(jobs, key=lambda job: job.flat.ratio).flat
    thin, thick = ((job, make_plan(best, job, "sharded").predicted) for job in (thin_job(most), most))
    return [
        make_plan(shared, job.flat, "ring").predicted if job.exchange == "ring" else between(job.flat, thin, thick)
        for job in jobs
    ]


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
