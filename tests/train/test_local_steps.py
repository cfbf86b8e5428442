"""Local steps: rounds of steps that every rank makes alone, against a reference in plain torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.train import local_jobs
from tests.train.jobs import small_net
from tests.train.ranks import Ranks

CASES: dict[str, tuple[Any, ...]] = {
    "nesterov": (small_net, local_jobs.sgd, None, local_jobs.nesterov),
    "average": (small_net, local_jobs.sgd, "average", local_jobs.average),
    "factory": (small_net, local_jobs.sgd, local_jobs.adam, local_jobs.adam),
    "groups": (small_net, local_jobs.adamw_in_groups, None, local_jobs.nesterov),
    "tied": (local_jobs.Tied, local_jobs.sgd, None, local_jobs.nesterov),
}


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_end_with_the_weights_of_the_reference_to_the_bit(ranks: Ranks, case: str) -> None:
    for ours, reference in ranks.run(2, local_jobs.both, *CASES[case]):
        assert torch.equal(ours["weights"], reference)


def test_replicas_are_equal_at_the_end_of_every_round_and_differ_inside(ranks: Ranks) -> None:
    for ours, reference in ranks.run(4, local_jobs.both, *CASES["nesterov"]):
        assert ours["agreed"] == [False, False, False, True] * 3
        assert torch.allclose(ours["weights"], reference, atol=1e-5)
        assert ours["step"] == 12
        assert ours["summary"].steps == 3, "a round is one step of the session"


@pytest.mark.parametrize("config", ["int8", "int4", "topk:0.1+int8", "lowrank:2", "auto"])
@pytest.mark.parametrize("world", [2, 3])
def test_replicas_are_equal_at_every_level(ranks: Ranks, config: str, world: int) -> None:
    found = ranks.run(world, local_jobs.train_local, small_net, local_jobs.sgd, config)
    for ours in found:
        assert ours["agreed"] == [False, False, False, True] * 3
        assert torch.equal(ours["weights"], found[0]["weights"])


def test_a_wire_of_gradwires_own_carries_the_weights(ranks: Ranks) -> None:
    for level in ("off", "int8"):
        config = {"level": level, "transport": {"kind": "tcp"}, "observe": {"verify": 1}}
        for ours in ranks.run(2, local_jobs.train_local, small_net, local_jobs.sgd, config):
            assert ours["agreed"] == [False, False, False, True] * 3


@pytest.mark.parametrize("kept", ["float32", "bfloat16"])
def test_compressed_rounds_follow_the_uncompressed_ones(ranks: Ranks, kept: str) -> None:
    """Residuals keep what int4 rounds away, so after more rounds the weights stay close."""
    configs = [{"level": level, "compress": {"residual_type": kept}} for level in ("off", "int4")]
    exact, rounded = (
        ranks.run(2, local_jobs.train_local, small_net, local_jobs.sgd, config, 40)[0] for config in configs
    )
    start = torch.cat([one.detach().flatten() for one in small_net().parameters()])
    error = (exact["weights"] - rounded["weights"]).norm() / (exact["weights"] - start).norm()
    assert error < 0.2
    assert rounded["summary"].wire_bytes < exact["summary"].wire_bytes / 5


def test_a_compiled_model_trains_as_an_uncompiled_one(ranks: Ranks) -> None:
    plain = ranks.run(2, local_jobs.train_local, small_net, local_jobs.sgd, "off", 8)[0]["weights"]
    for inside, outside in ranks.run(2, local_jobs.compiled):
        assert torch.allclose(inside, plain, atol=1e-5)
        assert torch.allclose(outside, plain, atol=1e-5)


@pytest.mark.parametrize("use_no_sync", [True, False])
def test_accumulated_gradients_are_one_step(ranks: Ranks, use_no_sync: bool) -> None:
    for _, rounds in ranks.run(2, local_jobs.accumulated, use_no_sync):
        assert rounds == 2


@pytest.mark.parametrize("given", [True, False])
def test_steps_that_a_loss_scaler_skips_count(ranks: Ranks, given: bool) -> None:
    """Rank 1 alone skips three of nine steps; rounds end after the same iterations on both ranks all the same."""
    for agreed, step in ranks.run(2, local_jobs.scaled, given):
        assert agreed == [False, False, True] * 3
        assert step == 9


def test_a_schedule_changes_the_inner_steps_only(ranks: Ranks) -> None:
    for ours, reference in ranks.run(2, local_jobs.scheduled):
        assert torch.allclose(ours, reference, atol=1e-6)


def test_buffers_are_averaged_at_the_end_of_a_round_and_not_broadcast_before(ranks: Ranks) -> None:
    for found in ranks.run(2, local_jobs.buffers):
        assert found == {
            "own_differ": True,
            "averaged": True,
            "agreed": True,
            "shared": True,
            "restored": True,
            "batches": 3,
            "broadcast": True,
        }


@pytest.mark.parametrize("at", [4, 6])
@pytest.mark.parametrize("config", ["off", {"level": "topk:0.1+int8", "compress": {"rounding": "nearest"}}])
def test_a_checkpoint_continues_to_the_bit_also_in_the_middle_of_a_round(ranks: Ranks, config: Any, at: int) -> None:
    for whole, resumed, steps in ranks.run(2, local_jobs.resumed, config, at):
        assert torch.equal(whole, resumed)
        assert steps == 10


def test_another_number_of_ranks_continues_from_the_mean_of_the_old_ones(ranks: Ranks) -> None:
    saved = ranks.run(3, local_jobs.states_of, 6)
    mean = torch.stack([weights for _, weights in saved]).mean(0)
    for loaded, in_round, agreed in ranks.run(2, local_jobs.load_states, [state for state, _ in saved]):
        assert in_round == 2
        assert torch.allclose(loaded, mean, atol=1e-6)
        assert agreed


@pytest.mark.parametrize(
    ("make", "scale"), [(local_jobs.sgd, False), (local_jobs.adamw_in_groups, False), (local_jobs.sgd, True)]
)
def test_replicas_stay_equal_after_detach_and_no_residual_is_left(ranks: Ranks, make: Any, scale: bool) -> None:
    for found in ranks.run(2, local_jobs.detached, make, scale):
        assert found == {"agreed": [True] * 6, "left": 0}


def test_a_round_can_be_ended_early_and_global_weights_evaluated_inside_one(ranks: Ranks) -> None:
    for found in ranks.run(2, local_jobs.early_ends):
        assert found["agreed"]
        assert found["rounds"] == (1, 1), "right after a round there is nothing to synchronise"
        assert found["inside"]
        assert found["after"]
        assert found["error"].startswith("global_weights: the optimizer made a step")


@pytest.mark.parametrize("level", ["off", "int8", "auto"])
def test_a_rank_that_never_reaches_the_end_of_a_round_is_a_link_error_on_the_others(ranks: Ranks, level: str) -> None:
    found = ranks.run(3, local_jobs.never_reaches_the_boundary, level)
    assert found[0]
    assert found[2]
    assert not found[1]


def test_an_optimizer_without_sync_every_changes_nothing(ranks: Ranks) -> None:
    with_optimizer, without = (ranks.run(2, local_jobs.plain_ddp, given)[0] for given in (True, False))
    assert torch.equal(with_optimizer, without)


def test_the_optimizer_of_an_unchanged_script_is_found_at_its_first_step(ranks: Ranks) -> None:
    for found in ranks.run(2, local_jobs.by_variable):
        assert found == {"agreed": [False, False, True] * 2, "same": True, "rounds": 2}


def test_wrong_calls_name_the_setting_and_the_fix(ranks: Ranks) -> None:
    expected = [
        "sync_every: 0 is not valid",
        "sync_every: 2.5 is not valid",
        "sync_every: 5 needs the optimizer",
        "optimizer: this SGD does not step '0.bias' (5 of 6",
        "optimizer: this SGD also steps parameters",
        "optimizer: int is not a torch optimizer",
        "sync_every: with find_unused_parameters",
        "sync_seconds: 5 cannot be combined with plan = 'ring'",
        "outer: 'nestorov' is not an outer optimizer; did you mean 'nesterov'?",
        "outer: the function returned int",
        "outer: an outer optimizer steps the weights after local steps",
        "num_fragments: fragments need a fixed number of local steps",
        "sync_every: rank 0 has 5, rank 1 has 6",
        "outer: rank 0 has average, rank 1 has adam",
        "the model's weights: rank 0 has",
    ]
    for errors in ranks.run(2, local_jobs.wrong_calls):
        assert [error[: len(start)] for error, start in zip(errors, expected, strict=True)] == expected
