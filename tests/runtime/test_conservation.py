"""Conservation: when the level changes, what was applied and what can still be sent add up to the gradient."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

import pytest
import torch
from torch import Tensor

from gradwire.compress.residual import ResidualType
from gradwire.config import CompressConfig
from gradwire.transport.lanes.loopback import seeded_loss
from tests.runtime.sessions import Sessions

RANKS = 3
# 3 ranks x 256 elements divide the first bucket, so levels with quite different exchanges divide it into equal chunks.
SHAPES = [[("w", (320, 382)), ("b", (640,))], [("v", (60, 100)), ("c", (144,))], [("tiny", (600,))]]
LEVELS = [
    "off", "fp16", "int8", "int4", "int2", "topk:0.1", "topk:0.03", "topk:0.01+int8", "topk:0.001", "randk:0.05",
    "sharedk:0.02", "sharedk:0.1+int8", "lowrank:4", "prune:0.5+int8", "prune:0.5+topk:0.01", "int8+zstd",
]  # fmt: skip


def gradients(seed: int) -> list[list[Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    sizes = [sum(int(torch.Size(shape).numel()) for _, shape in parts) for parts in SHAPES]
    return [[torch.randn(size, generator=generator) * (1 + rank) for size in sizes] for rank in range(RANKS)]


@pytest.fixture(params=[4.0, 0.1], ids=["whole", "chunked"])
def world(request: pytest.FixtureRequest) -> Iterator[Sessions]:
    sessions = Sessions(RANKS, SHAPES, CompressConfig(chunk=request.param))
    yield sessions
    sessions.close()


def difference(world: Sessions, given: list[Tensor], applied: list[Tensor]) -> float:
    """The norm of gradient that is neither applied nor can be sent, against that of all gradient given."""
    residuals, missing, whole = world.residuals(), 0.0, 0.0
    for parts, total, sent in zip(SHAPES, given, applied, strict=True):
        left = torch.cat([residuals.get(name, torch.zeros(torch.Size(shape).numel())) for name, shape in parts])
        missing += float((total - sent - left).square().sum())
        whole += float(total.square().sum())
    return (missing / whole) ** 0.5


@pytest.mark.slow
@pytest.mark.parametrize("first", LEVELS)
def test_every_change_of_level_keeps_applied_plus_residual_equal_to_the_gradient(first: str, world: Sessions) -> None:
    """One job that goes from `first` to the levels after it in the list and back, checked at every step."""
    given = [torch.zeros(own.numel(), dtype=torch.float64) for own in gradients(0)[0]]
    applied = [torch.zeros_like(total) for total in given]
    path = [level for then in LEVELS[LEVELS.index(first) :] for level in (first, then)] + [first]
    for number, level in enumerate(path):
        parts = gradients(number % 7)
        restored = world.step(level, parts)
        for index in range(len(SHAPES)):
            assert all(torch.equal(restored[0][index], own[index]) for own in restored[1:])
            given[index] += sum(own[index].double() for own in parts)
            applied[index] += RANKS * restored[0][index].double()
        assert difference(world, given, applied) < 1e-6, f"lost after step {number} at {level}"


@pytest.mark.slow
@pytest.mark.parametrize("first", LEVELS)
def test_residuals_in_bfloat16_conserve_the_gradient_to_their_rounding(first: str) -> None:
    """As above. A residual is written in a step and, where the level changes, with that of the owners before the next;
    each write has a standard deviation of 2^-8 of the value at most."""
    world = Sessions(RANKS, SHAPES, CompressConfig(chunk=0.1, residual_type="bfloat16"))
    given = [torch.zeros(own.numel(), dtype=torch.float64) for own in gradients(0)[0]]
    applied = [torch.zeros_like(total) for total in given]
    path, variance = [level for then in LEVELS[::3] for level in (first, then)] + [first], 0.0
    before = 0.0
    for number, level in enumerate(path):
        parts = gradients(number % 7)
        restored = world.step(level, parts)
        for index in range(len(SHAPES)):
            assert all(torch.equal(restored[0][index], own[index]) for own in restored[1:])
            given[index] += sum(own[index].double() for own in parts)
            applied[index] += RANKS * restored[0][index].double()
        after = sum(float(one.square().sum()) for own in world.feedbacks for one in own.written().values())
        variance, before = variance + (before + after) * 2.0**-16, after
        norm = sum(float(total.square().sum()) for total in given) ** 0.5
        assert difference(world, given, applied) * norm <= variance**0.5 + 1e-6 * norm, f"step {number} at {level}"
    world.close()


@pytest.mark.parametrize("level", ["int8", "int4", "topk:0.2"])
@pytest.mark.parametrize("late", [False, True])
def test_what_was_not_delivered_returns_to_residuals_in_bfloat16_too(level: str, late: bool) -> None:
    """Three writes, each to a neighbour at most: of what was not sent, of what was lost, and with the owner's share."""
    worlds = [
        Sessions(RANKS, SHAPES, CompressConfig(residual_type=kept), loss=seeded_loss(0.2, seed=3), late=late)
        for kept in get_args(ResidualType)
    ]
    for world in worlds:
        world.step(level, gradients(0))
    for exact, rounded in zip(worlds[0].feedbacks, worlds[1].feedbacks, strict=True):
        exact.settle()
        sizes = exact.written()
        wide, narrow = exact.state_dict()["residuals"], rounded.state_dict()["residuals"]
        assert sum(float(value.abs().gt(0.5).sum()) for value in wide.values()) > 1000, "whole values returned"
        for name, value in wide.items():
            assert narrow[name].dtype == torch.bfloat16
            scale = 2.0  # the most that quantising leaves here, before what was lost is added to it
            assert bool(((narrow[name] - value).abs() <= 3 * 2.0**-7 * (sizes[name] + scale)).all())
    for world in worlds:
        world.close()


def test_reports_that_come_after_the_exchange_change_nothing() -> None:
    """What a lossy lane did not deliver returns to the residual of its bucket before that is used again: with late
    reports all steps and the checkpoint have the same bits as with prompt ones."""
    levels = ["int8", "int8", "topk:0.2", "int4", "off", "int4", "fp16"]
    runs = [Sessions(RANKS, SHAPES, loss=seeded_loss(0.1, seed=3), late=late) for late in (False, True)]
    for number, level in enumerate(levels):
        prompt, late = (world.step(level, gradients(number)) for world in runs)
        for own, other in zip(prompt, late, strict=True):
            assert all(torch.equal(one, two) for one, two in zip(own, other, strict=True))
    for one, two in zip(runs[0].feedbacks, runs[1].feedbacks, strict=True):
        kept, returned = one.state_dict()["residuals"], two.state_dict()["residuals"]
        assert kept.keys() == returned.keys()
        assert all(torch.equal(kept[name], returned[name]) for name in kept)
    for world in runs:
        world.close()
