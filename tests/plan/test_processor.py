"""What members' processors add to the time of an exchange along trees."""

from __future__ import annotations

import numpy as np
import pytest

from gradwire.plan.job import ReductionJob
from gradwire.plan.matrix import Matrix
from gradwire.plan.model.processor import frames_handled, processor_seconds
from gradwire.plan.planners.registry import make_plan
from gradwire.plan.trees import star_of
from gradwire.types import Plan, Tree

JOB = ReductionJob(1_000_000, 100_000)


def plan_of(*trees: Tree, **more: object) -> Plan:
    return Plan(1, "test", trees, 0.0, "", **more)  # type: ignore[arg-type]


def test_a_root_handles_the_frames_of_all_others() -> None:
    handled = frames_handled(plan_of(star_of(0, 4, 1.0)), JOB)
    assert handled == {0: 10 * 6, 1: 10 * 2, 2: 10 * 2, 3: 10 * 2}


def test_a_relay_handles_every_frame_twice() -> None:
    plan = plan_of(star_of(0, 2, 1.0), routes={(1, 0): (1, 2, 0)})
    assert frames_handled(plan, JOB) == {0: 20, 1: 20, 2: 20}


def test_beside_a_slow_network_only_the_path_of_one_piece_counts() -> None:
    chain = plan_of(Tree(0, {0: 0, 1: 0, 2: 1}, 1.0))
    assert processor_seconds(chain, JOB, 0.001, network=10.0) == pytest.approx(2 * 2 * 2 * 0.001)


def test_a_member_that_is_busy_for_longer_than_the_network_is_the_limit() -> None:
    star = plan_of(star_of(0, 4, 1.0))
    assert processor_seconds(star, JOB, 0.01, network=0.1) == pytest.approx(4 * 0.01 + 60 * 0.01 - 0.1)
    assert processor_seconds(star, JOB, 0.0, network=0.1) == 0.0


def test_shares_of_several_roots_spread_the_work() -> None:
    rate = np.full((4, 4), 1e7)
    weighted, star = (make_plan(Matrix.of(rate), JOB, name) for name in ("sharded", "star"))
    assert max(frames_handled(weighted, JOB).values()) < 0.7 * max(frames_handled(star, JOB).values())
