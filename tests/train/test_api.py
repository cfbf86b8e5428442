"""Wrong calls of the API: each is a ConfigError that names what is wrong and what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import gradwire
from tests.train import jobs
from tests.train.ranks import Ranks


def _error_of(call: Callable[[], object]) -> str:
    try:
        call()
    except gradwire.ConfigError as error:
        return str(error)
    return ""


def _attached_by_keyword(rank: int, world: int) -> tuple[set[str], str, str]:
    model = DistributedDataParallel(jobs.small_net())
    handle = gradwire.attach(model, level="int8")
    model(jobs.batch(rank, 0)[0]).sum().backward()
    other = gradwire.attach(DistributedDataParallel(jobs.small_net()), {"level": "off"}, level="fp16")
    return set(handle.summary().levels), other.config.level, _error_of(lambda: gradwire.attach(model, level="int4"))


def test_a_level_may_be_given_by_its_name(ranks: Ranks) -> None:
    for levels, other, again in ranks.run(2, _attached_by_keyword):
        assert levels == {"int8"}
        assert other == "fp16", "the argument overrides the configuration"
        assert "attached to this model already" in again


def _caps(rank: int, world: int) -> tuple[str, str, list[str]]:
    model = DistributedDataParallel(jobs.small_net())
    shown = gradwire.attach(model, "auto", lossiest="int4").config.lossiest
    mesh = init_device_mesh("cpu", (1, world), mesh_dim_names=("replicate", "shard"))
    sharded = gradwire.attach_fsdp(fully_shard(jobs.small_net(), mesh=mesh), "netsense", lossiest="topk:0.1")
    other = DistributedDataParallel(jobs.small_net())
    wrong: list[Callable[[], object]] = [
        lambda: gradwire.attach(model, lossiest="int8"),
        lambda: gradwire.attach(other, "int8", lossiest="int4"),
        lambda: gradwire.attach(other, "auto", lossiest=4),  # type: ignore[arg-type]
        lambda: gradwire.attach(other, "auto", lossiest="topk:0.1", plan="star"),
    ]
    return shown, sharded.config.lossiest, [_error_of(call) for call in wrong]


def test_the_lossiest_level_may_be_given_by_its_name(ranks: Ranks) -> None:
    for shown, sharded, errors in ranks.run(1, _caps):
        assert (shown, sharded) == ("int4", "topk:0.1")
        starts = [
            "attach: gradwire is attached",
            "lossiest: 'int4' limits",
            "lossiest: 4 is",
            "lossiest: topk:0.1 cannot",
        ]
        assert [error.startswith(start) for error, start in zip(errors, starts, strict=True)] == [True] * 4, errors


def _wrong_arguments(rank: int, world: int) -> list[str]:
    model = DistributedDataParallel(jobs.small_net())
    wrong: list[dict[str, Any]] = [{"config": 0.01}, {"record": 5}, {"level": 8}, {"plan": 3}, {"transport": 1}]
    return [_error_of(lambda given=given: gradwire.attach(model, **given)) for given in wrong]  # type: ignore[misc]


def test_arguments_of_the_wrong_type_are_named(ranks: Ranks) -> None:
    named = ["config: 0.01 is", "record: 5 is", "level: 8 is", "plan: 3 is", "transport: 1 is"]
    for errors in ranks.run(1, _wrong_arguments):
        assert [text.startswith(start) for text, start in zip(errors, named, strict=True)] == [True] * 5, errors


def _wrong_states(rank: int, world: int) -> list[str]:
    handle = gradwire.attach(DistributedDataParallel(jobs.small_net()), "int8")
    good = handle.state_dict()
    wrong = [{}, [], None, 5, "state", [good, {}], {"model": 1}]
    errors = [_error_of(lambda state=state: handle.load_state_dict(state)) for state in wrong]  # type: ignore[misc]
    handle.load_state_dict(good)
    return errors


def test_an_invalid_state_is_refused_and_the_error_says_what_to_pass(ranks: Ranks) -> None:
    for errors in ranks.run(2, _wrong_states):
        for text in errors:
            assert text.startswith("load_state_dict: ")
            assert "handle.state_dict()" in text


def _one_rank_without_a_state(rank: int, world: int) -> str:
    handle = gradwire.attach(DistributedDataParallel(jobs.small_net()), "int8")
    return _error_of(lambda: handle.load_state_dict(handle.state_dict() if rank == 0 else {}))


def test_no_rank_waits_for_one_without_a_state(ranks: Ranks) -> None:
    for error in ranks.run(2, _one_rank_without_a_state, timeout=60.0):
        assert "the step of the state to load" in error


def _notes(rank: int, world: int) -> tuple[list[str], list[str]]:
    handle = gradwire.attach(DistributedDataParallel(jobs.small_net()), "int8")
    wrong: list[dict[str, Any]] = [
        {"los": 1}, {"acuracy": 0.5}, {"total_step": 10}, {"loss": "high"}, {"loss": torch.ones(2)}, {"mine": [1]},
    ]  # fmt: skip
    fine: list[dict[str, Any]] = [
        {"loss": torch.tensor(1.0)}, {"loss2": 1},
        {"val_loss": 1.0, "test_accuracy": 0.5}, {"perplexity": float("nan")},
        {"epochs": 3, "lr": 0.1}, {"loss": None, "accuracy": 1},
    ]  # fmt: skip

    def note(given: dict[str, Any]) -> str:
        return _error_of(lambda: handle.note(**given))

    return list(map(note, wrong)), list(map(note, fine))


def test_a_misspelt_note_is_refused_and_a_users_own_numbers_are_accepted(ranks: Ranks) -> None:
    for wrong, fine in ranks.run(1, _notes):
        assert all(text.startswith("note: ") for text in wrong), wrong
        assert "did you mean 'loss'?" in wrong[0]
        assert fine == [""] * 6
