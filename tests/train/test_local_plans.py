"""Local steps along a plan's trees, against the reference in plain torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.train import local_jobs
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
