"""Whole synchronisations in virtual time, with ceilings: the 9-site network, side routes, hundreds of sites."""

from __future__ import annotations

import numpy as np
import pytest

from gradwire.plan.job import ReductionJob
from gradwire.plan.matrix import Matrix
from gradwire.plan.model.matrix_io import generated, netstorm9
from gradwire.plan.planners.registry import PLANNERS, make_plan
from gradwire.simulate.compare import compare, simulate

ALEXNET = ReductionJob(244_403_360, chunk=4_000_000)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.slow
def test_on_the_9_sites_load_aware_beats_what_was_published(seed: int) -> None:
    rows = {row.planner: row.simulated for row in compare(netstorm9(seed).matrix, ALEXNET, PLANNERS)}
    best = rows["loadaware"]
    assert best == min(rows.values())
    assert rows["star"] / best > 7.5
    assert rows["fapt"] / best > 1.5
    assert rows["pairwise"] / best > 2.0


def test_side_routes_help_where_the_best_path_is_congested() -> None:
    """A ring over one slow link, in a mesh whose other links idle."""
    rate = np.full((5, 5), 10e6)
    rate[0, 1] = 1e6
    matrix, job = Matrix.of(rate, 0.01), ReductionJob(50_000_000)
    plan = make_plan(matrix, job, "ring")
    assert set(plan.auxiliary) == {(0, 1)}
    without, beside = simulate(matrix, plan, job), simulate(matrix, plan, job, side_routes=True)
    assert beside.sideways > 0
    assert beside.seconds < 0.6 * without.seconds


@pytest.mark.parametrize("planner", PLANNERS)
def test_side_routes_cost_nothing_where_nothing_is_congested(planner: str) -> None:
    """All links alike: idle ones beside busy ones only in single trees, where a side road must do no harm."""
    matrix, job = Matrix.of(np.full((6, 6), 10e6), 0.01), ReductionJob(20_000_000)
    plan = make_plan(matrix, job, planner)
    without, beside = simulate(matrix, plan, job), simulate(matrix, plan, job, side_routes=True)
    assert beside.seconds <= without.seconds * 1.02


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.slow
def test_side_routes_never_make_the_9_sites_slower(seed: int) -> None:
    matrix = netstorm9(seed).matrix
    for planner in ("star", "ring", "pairwise", "fapt", "loadaware"):
        plan = make_plan(matrix, ALEXNET, planner)
        assert simulate(matrix, plan, ALEXNET, True).seconds <= simulate(matrix, plan, ALEXNET).seconds * 1.01


@pytest.mark.slow
def test_sixty_sites_are_simulated_and_predicted_within_a_fifth() -> None:
    matrix, job = generated(60, 1).matrix, ReductionJob(100_000_000)
    for row in compare(matrix, job, ("kary", "pairwise", "loadaware")):
        assert row.simulated is not None
        assert row.predicted == pytest.approx(row.simulated, rel=0.2)
