"""Streaming fragments: staggered, overlapped with training, and exact in what they promise."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.train import fragment_jobs
from tests.train.fragment_jobs import Case
from tests.train.ranks import Ranks

NEAREST = {"level": "topk:0.1+int8", "compress": {"rounding": "nearest"}}


@pytest.mark.parametrize(
    "case",
    [
        Case(count=3, delay=0),
        Case(count=3, delay=1),
        Case(count=3, delay=2),
        Case(count=2, delay=3, progress=0.5),
        Case(count=2, delay=1, progress=0.0),
        Case(every=7, count=3, delay=2),
        Case(count=1, delay=4),
    ],
    ids=lambda case: f"{case.every}-{case.count}-{case.delay}-{case.progress:g}",
)
@pytest.mark.parametrize("world", [2, 3])
def test_local_and_global_weights_are_those_of_the_reference_after_every_step(
    ranks: Ranks, case: Case, world: int
) -> None:
    for found in ranks.run(world, fragment_jobs.against_reference, case, 15):
        assert max(local for local, _, _ in found) < 2e-6
        assert max(shared for _, shared, _ in found) < 2e-6
        assert all(agreed for _, _, agreed in found)


@pytest.mark.parametrize("level", ["off", "int8", "int4", "topk:0.1+int8", "lowrank:2", "auto"])
@pytest.mark.parametrize("world", [2, 3])
def test_global_weights_are_equal_to_the_bit_after_every_step_at_every_level(
    ranks: Ranks, level: str, world: int
) -> None:
    for found in ranks.run(world, fragment_jobs.shared_weights, Case(delay=1, level=level), 13):
        assert found["agreed"] == [True] * 13
        assert found["moved"] == 6, "after steps 3, 5, 7, 9, 11 and 13"
        assert [event.fragment for event in found["outer"]] == [0, 1, 2, 0, 1, 2]
        assert [event.local_steps for event in found["outer"]] == [2, 4, 6, 6, 6, 6]
        assert {event.delay for event in found["outer"]} == {1}
        assert "every 6 steps in 3 fragments, applied 1 step after sending: 6 outer steps" in found["summary"]


def test_a_wire_of_gradwires_own_carries_fragments(ranks: Ranks) -> None:
    for level in ("off", "int8"):
        config = {"level": level, "transport": {"kind": "tcp"}, "observe": {"verify": 1}}
        for found in ranks.run(2, fragment_jobs.shared_weights, Case(delay=2, level=config), 10):
            assert all(found["agreed"])


@pytest.mark.parametrize("level", ["off", "int8", "auto"])
def test_training_goes_on_while_a_fragment_is_exchanged(ranks: Ranks, level: str) -> None:
    """If it waited, rank 0 would not make the steps that rank 1 waits for."""
    config = {"level": level, "transport": {"timeout": 20}}
    case = Case(every=12, count=3, delay=4, level=config)
    assert ranks.run(2, fragment_jobs.goes_on, case) == [(0, True), (0, True)]


@pytest.mark.parametrize("at", [6, 7, 9])
@pytest.mark.parametrize("level", ["off", NEAREST])
def test_a_checkpoint_continues_to_the_bit_also_with_an_exchange_in_flight(ranks: Ranks, level: Any, at: int) -> None:
    case = Case(every=6, count=2, delay=2, level=level)
    for whole, resumed, steps, in_flight in ranks.run(2, fragment_jobs.resumed, case, at, 14):
        assert torch.equal(whole, resumed)
        assert steps == 14
        assert in_flight


def test_another_number_of_ranks_continues_from_the_mean_of_the_old_ones(ranks: Ranks) -> None:
    case = Case(every=6, count=2, delay=2, level="int8")
    saved = ranks.run(3, fragment_jobs.states_of, case, 7)
    mean = torch.stack([local for _, local, _ in saved]).mean(0)
    for local, shared, agreed in ranks.run(2, fragment_jobs.load_states, case, [state for state, _, _ in saved]):
        assert torch.allclose(local, mean, atol=1e-6)
        assert torch.equal(shared, saved[0][2])
        assert all(agreed)


@pytest.mark.parametrize("steps", [6, 8, 9])
def test_synchronise_applies_what_is_in_flight_and_sends_the_rest(ranks: Ranks, steps: int) -> None:
    case = Case(every=6, count=2, delay=2, level="int8")
    for found in ranks.run(2, fragment_jobs.synchronised, case, steps):
        assert found == {"flying": steps != 8, "agreed": True, "idle": True, "later": True}


@pytest.mark.parametrize("level", ["off", "topk:0.1"])
def test_replicas_stay_equal_after_detach_with_an_exchange_in_flight(ranks: Ranks, level: str) -> None:
    for found in ranks.run(2, fragment_jobs.detached, Case(every=6, count=2, delay=2, level=level), 7):
        assert found == {"agreed": [True] * 4, "left": 0}


@pytest.mark.parametrize("level", ["off", "int8"])
def test_close_leaves_the_weights_as_they_are_with_an_exchange_in_flight(ranks: Ranks, level: str) -> None:
    for before, after in ranks.run(2, fragment_jobs.closed, Case(every=6, count=2, delay=2, level=level), 6):
        assert torch.equal(before, after)


@pytest.mark.parametrize("delay", [1, 2])
def test_buffers_are_the_mean_of_those_sent_and_each_ranks_own_change_since(ranks: Ranks, delay: int) -> None:
    for found in ranks.run(2, fragment_jobs.buffers, delay):
        assert found == {"mean": True, "shared": True}


def test_fragments_are_settings_of_the_environment_too(ranks: Ranks) -> None:
    for agreed in ranks.run(2, fragment_jobs.by_variable):
        assert agreed == [True] * 8


def test_wrong_calls_name_the_setting_and_the_fix(ranks: Ranks) -> None:
    expected = [
        "num_fragments: 4 is more than the 3 layers of the model",
        "num_fragments: 3 is more than sync_every = 2",
        "fragment_sync_delay: 3 is too long",
        "num_fragments: 0 is not valid; it must be a whole number >= 1",
        "fragment_sync_delay: 1.5 is not valid; it must be a whole number >= 0",
        "num_fragments: 2 is a setting of local steps",
        "fragment_sync_delay: 2 is a setting of local steps",
        "fragment_progress: 1.5 is not valid",
        "fragment_sync_delay: 2 cannot be combined with compress.prune",
        "num_fragments: rank 0 has 2, rank 1 has 3",
        "fragment_sync_delay: rank 0 has 1, rank 1 has 2",
    ]
    for errors in ranks.run(2, fragment_jobs.wrong_calls):
        assert [error[: len(start)] for error, start in zip(errors, expected, strict=True)] == expected
