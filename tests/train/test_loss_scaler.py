"""Loss scaler: with torch's GradScaler, steps that it skips change nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import gradwire
from tests.train import jobs
from tests.train.ranks import Ranks

NEAREST = {"level": "int8", "compress": {"rounding": "nearest"}}
PLANNED = {**NEAREST, "plan": "ring", "transport": {"kind": "tcp"}}
MOMENTUM = {"level": "topk:0.01", "compress": {"momentum": 0.9}}


@pytest.mark.parametrize("level", ["topk:0.01", NEAREST, MOMENTUM, PLANNED, "lowrank:2", "off"])
def test_a_job_with_overflows_ends_with_the_weights_of_one_without(ranks: Ranks, level: Any) -> None:
    """Scales are powers of two, so only what the skipped steps left could differ."""
    without_overflow = ranks.run(3, jobs.scaled, level, False, True, False)
    with_overflow = ranks.run(3, jobs.scaled, level, True, True, False)
    assert with_overflow[0][1] < without_overflow[0][1]
    assert torch.equal(without_overflow[0][0], with_overflow[0][0])


def test_a_scaler_is_found_and_gradients_may_be_unscaled_and_clipped(ranks: Ranks) -> None:
    without_overflow = ranks.run(3, jobs.scaled, "topk:0.01", False, True, True)
    with_overflow = ranks.run(3, jobs.scaled, "topk:0.01", True, False, True)
    assert torch.equal(without_overflow[0][0], with_overflow[0][0])


def test_an_object_that_is_no_scaler_is_refused(ranks: Ranks) -> None:
    (answer,) = set(ranks.run(2, attach_with_scaler, "int8"))
    assert "pass the torch.amp.GradScaler" in answer


def attach_with_scaler(rank: int, world: int, scaler: Any) -> str:
    model = torch.nn.parallel.DistributedDataParallel(jobs.small_net())
    try:
        gradwire.attach(model, scaler=scaler)
    except gradwire.ConfigError as error:
        return str(error)
    return ""
