"""Rounds by time on ranks of unequal speed, which scripted clocks give them, against a reference in plain torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.train import timed_jobs
from tests.train.ranks import Ranks

NEAREST = {"level": "topk:0.1+int8", "compress": {"rounding": "nearest"}}
FRAGMENTS = {"num_fragments": 3, "fragment_sync_delay": 1}


@pytest.mark.parametrize("speeds", [(1.0, 3.0), (2.0, 2.5), (1.0, 2.5, 4.0)], ids=str)
def test_ranks_of_unequal_speed_end_with_the_weights_of_the_reference_to_the_bit(
    ranks: Ranks, speeds: tuple[float, ...]
) -> None:
    assert all(ranks.run(len(speeds), timed_jobs.against_reference, speeds))


@pytest.mark.parametrize("config", ["int8", "topk:0.1+int8", "lowrank:2", "auto"])
@pytest.mark.parametrize("changes", [{}, FRAGMENTS], ids=["whole", "fragments"])
def test_global_weights_are_equal_after_every_exchange_at_every_level(
    ranks: Ranks, config: str, changes: dict[str, Any]
) -> None:
    found = ranks.run(3, timed_jobs.trained, (1.0, 2.5, 4.0), config, changes)
    assert len({one["steps"] for one in found}) == 1
    for one in found:
        assert torch.equal(one["seen"], found[0]["seen"])
        assert "every 10 s" in one["summary"]


def test_a_wire_and_a_backend_of_gradwires_own_carry_rounds_by_time(ranks: Ranks) -> None:
    config = {"level": "int8", "transport": {"kind": "tcp"}, "observe": {"verify": 1}}
    for pool in (ranks, ranks.on("gradwire")):
        first, second = pool.run(2, timed_jobs.trained, (1.0, 3.0), config, {})
        assert torch.equal(first["seen"], second["seen"])


@pytest.mark.parametrize("level", ["off", "int8"])
def test_ranks_with_different_numbers_of_batches_end_together(ranks: Ranks, level: str) -> None:
    first, second = ranks.run(2, timed_jobs.different_loops, level)
    assert first["agreed"]
    assert first["steps"] == second["steps"] == 34
    assert first["weights"][1:] == [0.0] * (len(first["weights"]) - 1)
    assert second["weights"][0] == 10 / 14


def test_replicas_stay_equal_after_detach_at_different_steps(ranks: Ranks) -> None:
    for found in ranks.run(2, timed_jobs.detached):
        assert found == {"agreed": [True] * 4, "left": 0}


@pytest.mark.parametrize("changes", [{}, FRAGMENTS], ids=["whole", "fragments"])
@pytest.mark.parametrize("config", ["off", NEAREST])
def test_a_checkpoint_in_the_middle_of_a_round_continues_to_the_bit(
    ranks: Ranks, config: Any, changes: dict[str, Any]
) -> None:
    for whole, resumed in ranks.run(2, timed_jobs.resumed, config, changes):
        assert torch.equal(whole, resumed)


def test_steps_that_a_loss_scaler_skips_have_no_weight(ranks: Ranks) -> None:
    for agreed, events in ranks.run(2, timed_jobs.scaled):
        assert agreed == [True, True]
        assert [event.rank_steps for event in events] == [(5, 0), (5, 3)]


def test_buffers_become_their_mean_weighted_by_steps(ranks: Ranks) -> None:
    assert ranks.run(2, timed_jobs.buffers) == [(True, True)] * 2


def test_a_first_step_longer_than_a_round_does_not_disorder_the_messages_of_ddp(ranks: Ranks) -> None:
    assert torch.equal(*ranks.run(2, timed_jobs.slow_start))


@pytest.mark.parametrize("level", ["off", "int8", "auto"])
def test_ranks_go_on_without_one_whose_step_does_not_end(ranks: Ranks, level: str) -> None:
    """If they waited for it, its step would never end."""
    (agreed, events, _), (_, seen, sent) = ranks.run(2, timed_jobs.left_behind, level)
    assert agreed
    assert sent
    assert [event.rank_steps for event in events] == [event.rank_steps for event in seen]
    assert sum(event.rank_steps[1] for event in events) == 3, "every step of the late rank counts once"


def test_samples_are_counted_over_the_backwards_of_a_step(ranks: Ranks) -> None:
    for rank, (weights, errors) in enumerate(ranks.run(2, timed_jobs.samples)):
        assert weights == [(40 / 68, 28 / 68)[rank]]
        assert [error.partition(" is")[0] for error in errors] == ["count_samples: 0", "count_samples: 1.5"]


def test_a_rank_that_never_comes_is_a_link_error_on_the_others(ranks: Ranks) -> None:
    first, second, third = ranks.run(3, timed_jobs.never_comes)
    assert first
    assert third
    assert not second


def test_an_unchanged_loop_takes_the_setting_from_the_environment(ranks: Ranks) -> None:
    for found in ranks.run(2, timed_jobs.by_variable):
        assert found == {"agreed": True, "steps": 42, "seconds": 0.05}


def test_wrong_calls_name_the_setting_and_the_fix(ranks: Ranks) -> None:
    expected = [
        "sync_seconds: 0 is not valid; it must be a number > 0 of seconds",
        "sync_seconds: -1.0 is not valid",
        "sync_seconds: '30' is not valid",
        "sync_seconds: inf is not valid",
        "sync_seconds: 5 cannot be combined with sync_every = 20: a round ends by time or by steps",
        "sync_seconds: 5 cannot be combined with sync_every = 'auto'",
        "sync_seconds: 5 cannot be combined with plan = 'ring'",
        "sync_seconds: 700 is not less than transport.timeout = 600",
        "sync_seconds: -1 is not valid; it must be a number >= 0",
        "sync_wait: 1.5 is not valid; it must be a number <= 1",
        "sync_seconds: 5 needs the optimizer",
        "sync_seconds: rank 0 has 5.0, rank 1 has 6.0",
        "sync_every: rank 0 has 20, rank 1 has 0",
        "count_samples: ranks are weighted by what they did in a round only with sync_seconds",
    ]
    for errors in ranks.run(2, timed_jobs.wrong_calls):
        assert [error[: len(start)] for error, start in zip(errors, expected, strict=True)] == expected


def test_a_closed_handle_leaves_no_process_group_and_no_descriptor(ranks: Ranks) -> None:
    for groups, descriptors in ranks.run(2, timed_jobs.groups_left):
        assert groups == 0
        assert descriptors <= 0, "a model that was closed before may be collected meanwhile"
