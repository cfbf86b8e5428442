"""Local steps along a plan's trees, against the reference in plain torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.train import fragment_jobs, local_jobs, period_jobs
from tests.train.fragment_jobs import Case
from tests.train.jobs import small_net
from tests.train.ranks import Ranks


def planned(level: str = "off", plan: str = "loadaware", **more: Any) -> dict[str, Any]:
    return {"level": level, "plan": plan, "transport": {"kind": "tcp"}, "observe": {"verify": 1}, **more}


ELASTIC = {"planning": {"elastic": True}}
CASES = {
    "nesterov": (small_net, local_jobs.sgd, None, local_jobs.nesterov),
    "factory": (small_net, local_jobs.sgd, local_jobs.adam, local_jobs.adam),
    "tied": (local_jobs.Tied, local_jobs.adamw_in_groups, "average", local_jobs.average),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("elastic", [False, True])
def test_two_ranks_end_with_the_weights_of_the_reference_to_the_bit(ranks: Ranks, case: str, elastic: bool) -> None:
    config = planned(**ELASTIC if elastic else {})
    for ours, reference in ranks.run(2, local_jobs.both, *CASES[case], config):
        assert torch.equal(ours["weights"], reference)
        assert ours["agreed"] == [False, False, False, True] * 3


@pytest.mark.parametrize("plan", ["loadaware", "ring", "kary"])
def test_more_ranks_end_with_the_weights_of_the_reference(ranks: Ranks, plan: str) -> None:
    """Trees add in the order of arrival, so the last bits may differ; they are the same on all ranks."""
    found = ranks.run(4, local_jobs.both, *CASES["nesterov"], planned(plan=plan))
    for ours, reference in found:
        assert torch.allclose(ours["weights"], reference, atol=1e-5)
        assert torch.equal(ours["weights"], found[0][0]["weights"])
        assert ours["agreed"] == [False, False, False, True] * 3


@pytest.mark.parametrize("elastic", [False, True])
@pytest.mark.parametrize("level", ["fp16", "int8", "int4", "int2", "sharedk:0.1+int8", "randk:0.2", "auto"])
def test_replicas_are_equal_at_every_level_that_trees_can_sum(ranks: Ranks, level: str, elastic: bool) -> None:
    config = planned(level, **ELASTIC if elastic else {})
    found = ranks.run(3, local_jobs.train_local, small_net, local_jobs.sgd, config)
    for ours in found:
        assert ours["agreed"] == [False, False, False, True] * 3
        assert torch.equal(ours["weights"], found[0]["weights"])


def test_compressed_rounds_follow_the_uncompressed_ones(ranks: Ranks) -> None:
    """Residuals keep what int4 rounds away, also what a member in the middle of a tree rounds away for others."""
    exact, rounded = (
        ranks.run(3, local_jobs.train_local, small_net, local_jobs.sgd, planned(level, "kary"), 40)[0]
        for level in ("off", "int4")
    )
    start = torch.cat([one.detach().flatten() for one in small_net().parameters()])
    error = (exact["weights"] - rounded["weights"]).norm() / (exact["weights"] - start).norm()
    assert error < 0.2


@pytest.mark.parametrize("level", ["off", "int8"])
def test_buffers_are_averaged_along_the_trees_uncompressed(ranks: Ranks, level: str) -> None:
    for found in ranks.run(3, local_jobs.buffers, planned(level)):
        assert found == {
            "own_differ": True,
            "averaged": True,
            "agreed": True,
            "shared": True,
            "restored": True,
            "batches": 3,
            "broadcast": True,
        }


@pytest.mark.parametrize("level", ["off", "int8"])
def test_fragments_are_exchanged_along_the_trees(ranks: Ranks, level: str) -> None:
    case = Case(delay=1, level=planned(level))
    for found in ranks.run(3, fragment_jobs.shared_weights, case, 13):
        assert all(found["agreed"])
    if level == "off":
        for steps in ranks.run(3, fragment_jobs.against_reference, case, 13):
            assert all(local < 1e-5 and shared < 1e-5 and agreed for local, shared, agreed in steps)


def test_changes_between_synchronous_and_local_steps_are_those_of_the_reference(ranks: Ranks) -> None:
    script = [("off", 1), ("off", 1), ("off", 3), ("off", 3), ("off", 2), ("off", 2), ("off", 1)]
    for ours, reference in ranks.run(2, period_jobs.both, script, local_jobs.sgd, planned("auto")):
        assert {1, 2, 3} <= set(ours["modes"])
        assert torch.allclose(ours["weights"], reference, atol=1e-6)


def test_ranks_of_a_site_sum_among_themselves_first(ranks: Ranks) -> None:
    found = ranks.run(4, local_jobs.in_two_sites, planned())
    for ours, reference in found:
        assert torch.allclose(ours["weights"], reference, atol=1e-5)
        assert torch.equal(ours["weights"], found[0][0]["weights"])


@pytest.mark.parametrize("level", ["off", "int8"])
def test_plain_ddp_continues_after_detach_and_nothing_is_applied_twice(ranks: Ranks, level: str) -> None:
    """At `off` the trees keep no residual, so there is nothing to send: an outer step would add momentum."""
    for unchanged, agreed, later in ranks.run(3, local_jobs.detached_at_the_end_of_a_round, planned(level)):
        assert unchanged == (level == "off")
        assert agreed
        assert later == [True] * 3


def test_what_an_elastic_plan_allows_and_what_it_does_not(ranks: Ranks) -> None:
    for without in ranks.run(2, local_jobs.plan_errors, False):
        assert without[0].startswith("hand_over: ranks rejoin over an elastic plan; set plan and planning.elastic")
        assert without[1] == ""
    for elastic in ranks.run(2, local_jobs.plan_errors, True):
        assert elastic[0] == ""
        assert elastic[1].startswith("detach: plain DDP needs the process group of the start")
