"""Sparse gradients (`nn.Embedding(sparse=True)`) are reduced as plain DDP does: every level, every transport."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import gradwire
from tests.train import jobs
from tests.train.ranks import Ranks

CONFIGS: list[Any] = [
    "off",
    "int8",
    "topk:0.05+int8",
    "lowrank:2",
    "auto",
    {"level": "int8", "observe": {"verify": 1}},
    {"level": "topk:0.05", "compress": {"momentum": 0.9}},
    {"level": "int8", "transport": {"kind": "ltp"}},
    {"level": "off", "transport": {"kind": "tcp"}},
    {"level": "int8", "plan": "star"},
    {"level": "auto", "plan": "loadaware"},
]


def same_sparse(plain: list[dict[str, torch.Tensor]], attached: list[dict[str, torch.Tensor]]) -> bool:
    names = ("first.weight", "second.weight")
    return all(torch.equal(one[name], two[name]) for one, two in zip(plain, attached, strict=True) for name in names)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("world", [2, 3])
def test_sparse_gradients_are_plain_ddps_to_the_bit(ranks: Ranks, world: int, config: Any) -> None:
    plain = ranks.run(world, jobs.sparse_gradients, None)[0]
    attached = ranks.run(world, jobs.sparse_gradients, config)[0]
    assert same_sparse(plain["gradients"], attached["gradients"])
    if config == "off":
        assert torch.equal(plain["gradients"][-1]["last.weight"], attached["gradients"][-1]["last.weight"])
    assert attached["step"] == attached["summary"].steps == 5
    assert any("sparse gradient" in reason for reason in attached["summary"].reasons.values())
    assert not attached["summary"].errors


@pytest.mark.parametrize("config", ["int8", "auto", {"level": "int8", "plan": "star"}], ids=str)
def test_a_model_with_sparse_gradients_only_trains(ranks: Ranks, config: Any) -> None:
    plain = ranks.run(2, jobs.sparse_gradients, None, False)[0]
    attached = ranks.run(2, jobs.sparse_gradients, config, False)[0]
    assert same_sparse(plain["gradients"], attached["gradients"])
    assert attached["step"] == 5


@pytest.mark.parametrize("config", ["off", "int8"])
def test_sparse_gradients_over_the_gradwire_backend(ranks: Ranks, config: str) -> None:
    plain = ranks.on("gradwire").run(3, jobs.sparse_gradients, None)[0]
    attached = ranks.on("gradwire").run(3, jobs.sparse_gradients, config)[0]
    assert same_sparse(plain["gradients"], attached["gradients"])


def test_the_bytes_of_sparse_gradients_count_as_plain_ddps_too(ranks: Ranks) -> None:
    summary = ranks.run(3, jobs.sparse_gradients, "off")[0]["summary"]
    assert summary.wire_bytes > 0
    assert summary.wire_bytes == pytest.approx(summary.plain_bytes, rel=0.01)


def _elastic(rank: int, world: int) -> str:
    model = torch.nn.parallel.DistributedDataParallel(jobs.Words(dense=True))
    try:
        gradwire.attach(model, {"level": "off", "plan": "star", "planning": {"elastic": True}})
    except gradwire.ConfigError as error:
        return str(error)
    return ""


def test_an_elastic_plan_refuses_sparse_gradients_by_name(ranks: Ranks) -> None:
    for error in ranks.run(2, _elastic):
        assert "planning.elastic" in error
        assert "'first'" in error
