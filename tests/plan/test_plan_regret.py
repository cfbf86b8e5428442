"""Of plans for links of which only bounds are known, the one that is least wrong in either case is taken."""

from __future__ import annotations

import numpy as np

from gradwire.plan.job import ReductionJob
from gradwire.plan.matrix import Matrix
from gradwire.plan.membership.replan import predicted_seconds
from gradwire.plan.plan_regret import least_regret
from gradwire.plan.planners.registry import make_plan

JOB = ReductionJob(4_000_000)


def matrix(good: float, bad: float) -> Matrix:
    rate = np.full((4, 4), good)
    rate[0, 1] = rate[1, 0] = bad
    return Matrix.of(rate, 0.02)


def test_a_bad_link_is_avoided_where_that_costs_little_if_the_others_are_hardly_better() -> None:
    low, high = matrix(2e6, 0.5e6), matrix(16e6, 0.5e6)
    spread, avoiding = make_plan(low, JOB), make_plan(high, JOB)
    chosen = least_regret((spread, avoiding), (low, high), JOB)
    assert chosen is avoiding
    assert predicted_seconds(high, spread, JOB) > 2 * predicted_seconds(high, avoiding, JOB)
    assert predicted_seconds(low, avoiding, JOB) < 1.5 * predicted_seconds(low, spread, JOB)


def test_a_plan_that_is_bad_where_bounds_are_all_there_is_is_not_taken() -> None:
    """All over one link that might be fast, or an equal part over each of three."""
    known, hoped = Matrix.of(np.full((4, 4), 2e6)), matrix(2e6, 4e6)
    spread, narrow = make_plan(known, JOB, "sharded"), make_plan(known, JOB, "star")
    assert least_regret((narrow, spread), (known, hoped), JOB) is spread
    assert least_regret((spread, narrow), (known, hoped), JOB) is spread


def test_of_equal_plans_the_first_is_taken() -> None:
    plan = make_plan(matrix(2e6, 1e6), JOB)
    again = make_plan(matrix(2e6, 1e6), JOB)
    assert least_regret((plan, again), (matrix(2e6, 1e6), matrix(9e6, 1e6)), JOB) is plan
