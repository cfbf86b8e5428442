"""Trees that are in use are planned again in virtual time, by what their members would measure."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gradwire.network import Network, preset
from gradwire.plan.job import ReductionJob
from gradwire.plan.matrix import Matrix
from gradwire.plan.membership.link_estimates import LEAST_BYTES
from gradwire.plan.planners.registry import make_plan
from gradwire.simulate.simulated_replanner import SimulatedReplanner
from gradwire.simulate.tree_times import TreeTimes
from gradwire.types import Plan

NETWORK = preset("four-regions")
GOOD, BAD = 100e6 / 8, 4e6 / 8
JOB = ReductionJob(4 << 20)


def matrix(good: float, bad: float = BAD, confidence: float = 1.0) -> Matrix:
    """Four regions as a job knows them; `confidence` is that of the good links' rate."""
    rate, known = np.full((4, 4), good), np.full((4, 4), confidence)
    rate[0, 1] = rate[1, 0] = bad
    known[0, 1] = known[1, 0] = 1.0
    return Matrix.of(rate, 0.04, confidence=known)


def steps(times: TreeTimes, replanner: SimulatedReplanner, seconds: float) -> list[tuple[float, Plan]]:
    """One exchange after the other until that time; the plans that were changed to, and when."""
    now, changes = 0.0, []
    while now < seconds:
        now = times.operate("tree", now, JOB.nbytes)
        plan = replanner.take(times, now)
        if plan is not None:
            times.follow(plan, now)
            changes.append((now, plan))
    return changes


def typical(times: TreeTimes) -> float:
    """Of an exchange when windows are open."""
    begin = times.operate("tree", 1e4, JOB.nbytes)
    return times.operate("tree", begin, JOB.nbytes) - begin


def test_links_that_carry_more_than_was_seen_get_more_of_the_gradient() -> None:
    """Planned as if good links carried three times what the bad one does: a share of the gradient takes the bad one."""
    supposed = matrix(3 * BAD)
    plan = make_plan(supposed, JOB, "loadaware")
    times, best = TreeTimes(NETWORK, plan), TreeTimes(NETWORK, make_plan(matrix(GOOD), JOB, "loadaware"))
    before = typical(TreeTimes(NETWORK, plan))
    changes = steps(times, SimulatedReplanner(plan, supposed, JOB, 0.0), 70.0)
    assert 1 <= len(changes) <= 3
    assert changes[-1][1].version > plan.version
    assert typical(times) < 1.15 * typical(best) < 0.5 * before


def test_a_plan_for_the_network_as_it_is_stays() -> None:
    plan = make_plan(matrix(GOOD), JOB, "loadaware")
    assert steps(TreeTimes(NETWORK, plan), SimulatedReplanner(plan, matrix(GOOD), JOB, 0.0), 70.0) == []


def test_a_probe_goes_over_the_link_itself_where_trees_relay_its_pair() -> None:
    plan = make_plan(matrix(GOOD), JOB, "loadaware")
    relayed = replace(plan, routes={(0, 1): (0, 2, 1)})
    times = TreeTimes(NETWORK, relayed)
    assert times.probe((0, 1), 0.0, LEAST_BYTES) == pytest.approx(BAD, rel=0.2)
    assert times.probe((0, 2), 10.0, 4 * LEAST_BYTES) > 4 * BAD


def test_what_trees_carry_is_counted_by_edge_until_someone_takes_it() -> None:
    network: Network = preset("lan1g")
    plan = make_plan(Matrix.of(np.full((4, 4), 1e8), 0.0002), JOB, "star")
    times = TreeTimes(network, plan)
    times.operate("tree", 0.0, 1 << 20)
    assert set(times.sent) == {(0, 1), (0, 2), (0, 3), (1, 0), (2, 0), (3, 0)}
    assert times.sent[1, 0] == pytest.approx(1 << 20, rel=0.1)
