"""Local steps with FSDP2: sites shard the model, and synchronise the weights of their shards at the end of a round."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.train import local_jobs, sharded_local_jobs
from tests.train.jobs import small_net
from tests.train.ranks import Ranks

ROUNDS = [False, False, False, True] * 3
CASES: dict[str, tuple[Any, ...]] = {
    "nesterov": (small_net, local_jobs.sgd, None, local_jobs.nesterov, ""),
    "average": (small_net, local_jobs.sgd, "average", local_jobs.average, ""),
    "groups": (small_net, local_jobs.adamw_in_groups, None, local_jobs.nesterov, ""),
    "tied": (local_jobs.Tied, local_jobs.sgd, None, local_jobs.nesterov, ""),
    "empty shards": (sharded_local_jobs.uneven_net, local_jobs.sgd, None, local_jobs.nesterov, ""),
    "no gradient sync": (small_net, local_jobs.sgd, None, local_jobs.nesterov, "no gradient sync"),
    "sync twice": (small_net, local_jobs.sgd, None, local_jobs.nesterov, "sync twice"),
}


@pytest.mark.parametrize("case", CASES)
def test_two_sites_of_two_ranks_end_with_the_weights_of_the_reference_to_the_bit(ranks: Ranks, case: str) -> None:
    for ours, reference in ranks.run(4, sharded_local_jobs.both, *CASES[case]):
        assert torch.equal(ours["weights"], reference)
        assert ours["agreed"] == ROUNDS
        assert ours["step"] == 12
        assert ours["summary"].steps == 3, "a round is one step of the session"


def test_a_replica_that_is_not_reduced_at_every_step_accumulates_as_one_that_is(ranks: Ranks) -> None:
    """`set_requires_all_reduce(False)`: there is nothing to leave out, so gradients add up as always."""
    every, last = (
        ranks.run(4, sharded_local_jobs.train, small_net, local_jobs.sgd, "off", how)
        for how in ("sync twice", "no all-reduce")
    )
    for one, other in zip(every, last, strict=True):
        assert torch.equal(one["weights"], other["weights"])


@pytest.mark.parametrize("level", ["int8", "topk:0.1+int8", "lowrank:2", "auto"])
def test_replicas_of_a_shard_are_equal_at_the_end_of_a_round_at_every_level(ranks: Ranks, level: str) -> None:
    for ours in ranks.run(4, sharded_local_jobs.train, sharded_local_jobs.uneven_net, local_jobs.sgd, level):
        assert ours["agreed"] == ROUNDS


def test_fragments_are_sent_one_after_another_while_training_goes_on(ranks: Ranks) -> None:
    settings = {"num_fragments": 2, "fragment_sync_delay": 1}
    for ours in ranks.run(4, sharded_local_jobs.train, small_net, local_jobs.sgd, "int8", "", settings):
        assert ours["summary"].steps == 7, "two exchanges a round, and one by synchronise()"
        assert ours["agreed"] == [False] * 12
        assert ours["ended"]


@pytest.mark.parametrize("at", [4, 6])
def test_a_checkpoint_continues_to_the_bit_also_in_the_middle_of_a_round(ranks: Ranks, at: int) -> None:
    config = {"level": "topk:0.1+int8", "compress": {"rounding": "nearest"}}
    for whole, resumed, steps in ranks.run(4, sharded_local_jobs.resumed, config, at):
        assert torch.equal(whole, resumed)
        assert steps == 10


def test_another_number_of_sites_continues_from_the_mean_of_the_old_ones(ranks: Ranks) -> None:
    saved = ranks.run(2, sharded_local_jobs.states_of, 6)
    mean = torch.stack([weights for _, weights in saved]).mean(0)
    for loaded, agreed in ranks.run(3, sharded_local_jobs.load_states, [state for state, _ in saved]):
        assert torch.allclose(loaded, mean, atol=1e-6)
        assert agreed


def test_a_forward_pass_uses_the_weights_that_the_model_has_now(ranks: Ranks) -> None:
    for found in ranks.run(4, sharded_local_jobs.evaluated):
        assert all(found.values()), found


@pytest.mark.parametrize("make", [local_jobs.sgd, local_jobs.adamw_in_groups])
def test_replicas_stay_equal_after_detach_and_no_residual_is_left(ranks: Ranks, make: Any) -> None:
    for found in ranks.run(4, sharded_local_jobs.detached, make):
        assert found == {"agreed": [True] * 5, "left": 0}


def test_a_step_that_one_site_skips_counts_at_both(ranks: Ranks) -> None:
    for agreed, steps in ranks.run(4, sharded_local_jobs.scaled):
        assert agreed == [False, False, False, True] * 2
        assert steps == 8


def test_a_compiled_model_trains_as_an_uncompiled_one(ranks: Ranks) -> None:
    for plain, compiled in ranks.run(4, sharded_local_jobs.compiled):
        assert torch.allclose(plain, compiled, atol=1e-5)


def test_buffers_become_the_mean_over_the_replicas_of_a_rank(ranks: Ranks) -> None:
    assert ranks.run(4, sharded_local_jobs.buffers) == [(False, True, True)] * 4


def test_mistakes_are_named_on_all_ranks(ranks: Ranks) -> None:
    expected = [
        "attach_fsdp: the model is sharded over all ranks",
        "sync_every: 5 needs the optimizer",
        "optimizer: this SGD does not step",
        "sync_every: 'auto' cannot be used with FSDP2",
        "sync_seconds: 5 cannot be used with FSDP2",
        "plan: 'ring' cannot be used with FSDP2",
        "sync_every: 5 needs the optimizer",
        "sync_every: with num_fragments = 3 some rank of a site has an empty shard",
        "sync_every: rank 0 has 5, rank 2 has 6",
        "the model's weights: rank 0 has",
    ]
    for errors in ranks.run(4, sharded_local_jobs.mistakes):
        assert [error[: len(start)] for error, start in zip(errors, expected, strict=True)] == expected
