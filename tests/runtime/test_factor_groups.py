"""Groups of low-rank buckets: a held bucket is restored with its group, at the latest when the step ends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from gradwire.compress.base import Weights
from gradwire.events import Synchronised
from gradwire.exchange.select import FootprintTable
from gradwire.level import Level
from gradwire.types import Bucket, Decision
from tests.runtime.sessions import ConstantWeights, Sessions, buckets

LEVEL = "lowrank:4"
RANKS = 3
# Factors of 24 KB in each bucket: the first alone, then three in a group, then two with the last.
SHAPES = [[(f"w{index}", (700, 700)), (f"b{index}", (400,))] for index in range(6)]


def gradients(seed: int) -> list[list[Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [[torch.randn(490_400, generator=generator) for _ in SHAPES] for _ in range(RANKS)]


@pytest.fixture
def world() -> Iterator[Sessions]:
    sessions = Sessions(RANKS, SHAPES)
    yield sessions
    sessions.close()


def sent(world: Sessions) -> list[int]:
    """Bytes that one rank sent for each bucket; all ranks send the same."""
    found = [event for event in world.events if isinstance(event, Synchronised)]
    for event in found:
        assert event.wire_bytes == next(one.wire_bytes for one in found if one.bucket == event.bucket)
    return [next(one.wire_bytes for one in found if one.bucket == index) for index in range(len(SHAPES))]


def test_a_session_sends_in_groups_what_the_footprints_say(world: Sessions) -> None:
    results = world.step(LEVEL, gradients(1))
    predicted = FootprintTable(RANKS)(Level.parse(LEVEL), buckets(SHAPES, 0))
    assert sent(world) == pytest.approx([size.wire_bytes for size in predicted], rel=0.001)
    assert sum(nbytes == 0 for nbytes in sent(world)) == 3
    for index in range(len(SHAPES)):
        assert all(torch.equal(results[0][index], own[index]) for own in results[1:])


def backward(world: Sessions, rank: int, given: list[Tensor], step: list[Bucket]) -> None:
    """One backward; ends when every bucket is restored."""
    session = world.sessions[rank]
    world.governors[rank].decision = Decision(Level.parse(LEVEL), "the test's level")
    futures = []
    for bucket, gradient in zip(step, given, strict=True):
        weights: Weights = ConstantWeights(bucket.numel)
        futures.append(session.synchronise(bucket, gradient, weights))
    session.settle()
    for future in futures:
        future.wait()


def test_a_step_without_a_last_bucket_restores_every_bucket_when_it_ends(world: Sessions) -> None:
    """FSDP's buckets never say that they are the last."""
    step = [replace(bucket, is_last=False) for bucket in buckets(SHAPES, 0)]
    given = gradients(2)
    mean = torch.stack([own[5][490_000:] for own in given]).mean(0)
    world.each(lambda rank: backward(world, rank, given[rank], step))
    for own in given:
        torch.testing.assert_close(own[5][490_000:], mean)


def test_a_held_bucket_is_not_restored_before_its_group_is_sent(world: Sessions) -> None:
    given = gradients(3)
    early: list[bool] = []

    def one(rank: int) -> None:
        session, (first, second, third, *_) = world.sessions[rank], buckets(SHAPES, 0)
        world.governors[rank].decision = Decision(Level.parse(LEVEL), "the test's level")
        session.synchronise(first, given[rank][0], ConstantWeights(first.numel)).wait()
        held = session.synchronise(second, given[rank][1], ConstantWeights(second.numel))
        early.append(held.done())
        session.synchronise(replace(third, is_last=True), given[rank][2], ConstantWeights(third.numel)).wait()
        early.append(not held.done())
        session.settle()

    world.each(one)
    assert early == [False] * (2 * RANKS)


def test_every_step_measures_what_low_rank_has_left_waiting(world: Sessions) -> None:
    """Rank 4 of noise of 700 x 700 sends next to nothing: each step leaves about one gradient more in the residual."""
    timer, waiting = world.contexts[1].timer, []
    timer.lap(0.0, 0)
    for step in range(3):
        world.step(LEVEL, gradients(step))
        facts = timer.lap(step + 1.0, 2)
        assert facts is not None
        waiting.append(facts.residual)
    assert waiting[0] == 0.0
    assert waiting[1:] == pytest.approx([1.0, 2.0], rel=0.1)
