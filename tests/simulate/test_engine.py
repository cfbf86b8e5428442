"""The flow simulator on cases that can be computed by hand, and its fairness."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.errors import ConfigError
from gradwire.plan.job import ReductionJob
from gradwire.plan.matrix import Matrix
from gradwire.plan.planners.registry import make_plan
from gradwire.simulate.compare import simulate
from gradwire.simulate.engine import FlowSimulator
from gradwire.simulate.fair import max_min
from gradwire.simulate.models import gradient_bytes
from gradwire.simulate.world import build
from gradwire.types import Plan, Tree


def plan_of(*trees: Tree, **more: object) -> Plan:
    return Plan(1, "by hand", trees, 1.0, "test", **more)  # type: ignore[arg-type]


def test_two_members_exchange_up_then_down() -> None:
    matrix = Matrix.of([[0, 50.0], [100.0, 0]], rtprop=2.0)
    run = simulate(matrix, plan_of(Tree(0, {0: 0, 1: 0}, 1.0)), ReductionJob(1000, chunk=1000, aggregation=1e12))
    assert run.seconds == pytest.approx(1000 / 100 + 1 + 1000 / 50 + 1)


def test_chunks_are_pipelined_through_a_chain() -> None:
    matrix = Matrix.of(np.full((3, 3), 100.0))
    chain = Tree(0, {0: 0, 1: 0, 2: 1}, 1.0)
    run = simulate(matrix, plan_of(chain), ReductionJob(1000, chunk=100, aggregation=1e12))
    assert run.seconds == pytest.approx(10 + 3 * 1), "ten chunks of 1 s, and three more hops for the last one"


def test_leaves_share_the_downlink_of_their_root_fairly() -> None:
    matrix = Matrix.of(np.full((4, 4), 100.0), down=[90.0, 1e9, 1e9, 1e9])
    run = simulate(
        matrix, plan_of(Tree(0, dict.fromkeys(range(4), 0), 1.0)), ReductionJob(900, chunk=900, aggregation=1e12)
    )
    assert run.seconds == pytest.approx(900 / 30 + 900 / 100)


def test_relayed_pairs_load_every_link_of_their_route() -> None:
    matrix = Matrix.of_links({(0, 1): 100.0, (1, 0): 100.0, (1, 2): 100.0, (2, 1): 100.0})
    plan = make_plan(matrix, ReductionJob(1000, chunk=1000, aggregation=1e12), "star")
    assert plan.routes[2, 0] == (2, 1, 0)
    run = simulate(matrix, plan, ReductionJob(1000, chunk=1000, aggregation=1e12))
    assert run.seconds == pytest.approx(20 + 20), "1->0 and 0->1 carry two flows each"


def test_what_was_carried_is_what_the_plan_says() -> None:
    matrix = Matrix.of(np.full((5, 5), 1e6))
    run = simulate(matrix, make_plan(matrix, ReductionJob(10_000_000), "ring"), ReductionJob(10_000_000))
    assert sum(run.carried) == pytest.approx(2 * 4 * 10_000_000)


def test_growing_sums_make_upper_links_carry_more() -> None:
    matrix = Matrix.of(np.full((3, 3), 100.0))
    chain = Tree(0, {0: 0, 1: 0, 2: 1}, 1.0)
    job = ReductionJob(1000, chunk=1000, ratio=0.1, growth=1.0, aggregation=1e12)
    assert simulate(matrix, plan_of(chain), job).seconds == pytest.approx(1 + 2 + 3 + 3)


def test_a_plan_over_a_link_that_is_not_there_is_refused() -> None:
    matrix = Matrix.of([[0, 1.0, 1.0], [1.0, 0, 0], [1.0, 0, 0]])
    with pytest.raises(ConfigError, match="from member 2 to member 1"):
        build(matrix, plan_of(Tree(0, {0: 0, 1: 0, 2: 1}, 1.0)), ReductionJob(10))


def test_a_coarser_sharing_changes_the_time_by_little() -> None:
    random = np.random.default_rng(1)
    matrix = Matrix.of(random.uniform(1e6, 9e6, (8, 8)), 0.01, up=1.2e7, down=1.2e7)
    job = ReductionJob(30_000_000)
    plan = make_plan(matrix, job, "sharded")
    world = build(matrix, plan, job)
    exact, coarse = FlowSimulator(world).run().seconds, FlowSimulator(world, plan.predicted / 300).run().seconds
    assert coarse == pytest.approx(exact, rel=0.05)


@given(st.integers(1, 12), st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_rates_are_max_min_fair(flows: int, resources: int, seed: int) -> None:
    """Nothing is overfull, and every flow has a full resource on which nobody gets more than it does."""
    random = np.random.default_rng(seed)
    crosses = random.random((flows, resources)) < 0.4
    crosses[np.arange(flows), random.integers(0, resources, flows)] = True
    capacity = random.uniform(1, 100, resources)
    flow, resource = np.nonzero(crosses)
    rate = max_min(flow, resource, flows, capacity)
    used = rate @ crosses
    assert (used <= capacity * (1 + 1e-9)).all()
    for number in range(flows):
        full = crosses[number] & (used >= capacity * (1 - 1e-9))
        assert any(rate[number] >= rate[crosses[:, place]].max() * (1 - 1e-9) for place in np.flatnonzero(full))


def test_models_and_sizes_are_read() -> None:
    assert gradient_bytes("alexnet") == 244_403_360
    assert gradient_bytes("10MB") == 10_000_000
    with pytest.raises(ConfigError, match="alexnet"):
        gradient_bytes("gpt9")
