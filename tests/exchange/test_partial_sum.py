"""With loss: all ranks restore the same bytes, the mean is not shrunk, and no rank loses gradient."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from gradwire.compress.base import Codec
from gradwire.compress.build import build_codec
from gradwire.exchange.chunk import Chunk
from gradwire.exchange.sharded import sharded
from gradwire.level import Level
from gradwire.transport.lanes.base import AllToAll, Op
from gradwire.transport.lanes.loopback import seeded_loss
from tests.exchange.ranks import Rank, run

WORLD, NUMEL = 4, 120_011
LEVELS = ["fp16", "bf16", "int8", "int4", "int2", "topk:0.2", "topk:0.2+int8", "exactk:0.1+fp16", "randk:0.3+int4"]


def gradients(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(NUMEL, generator=generator) * (1 + rank) for rank in range(WORLD)]


def watched(chunk: Chunk, codec: Codec, arrived: list[Tensor]) -> Iterator[Op]:
    """The sharded exchange; what reached this owner is added to `arrived`, by sender."""
    for op in sharded(chunk, codec):
        yield op
        if isinstance(op, AllToAll):
            start, end = chunk.shard(chunk.rank)
            for sender, frame in enumerate(op.receive.view(WORLD, -1)):
                codec.decode(frame, arrived[sender][start:end], chunk.span_of(chunk.rank), add=True, whole=False)


@pytest.mark.parametrize("rate", [0.0, 0.1])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.slow
def test_delivered_values_and_residual_add_up_to_the_gradient(level: str, rate: float) -> None:
    codec = build_codec(Level.parse(level))
    ranks = [Rank(rank, WORLD, NUMEL, tolerance=0.5) for rank in range(WORLD)]
    given = [torch.zeros(NUMEL) for _ in ranks]
    arrived = [torch.zeros(NUMEL) for _ in ranks]
    for step in range(3):
        parts = gradients(seed=step)
        for total, part in zip(given, parts, strict=True):
            total.add_(part)
        loss = seeded_loss(rate, seed=step)
        results = run(ranks, parts, lambda chunk: watched(chunk, codec, arrived), step, loss)
        for result in results[1:]:
            assert torch.equal(result, results[0])
    for rank, total, came in zip(ranks, given, arrived, strict=True):
        torch.testing.assert_close(came + rank.residual, total, atol=1e-4, rtol=1e-5)
    if rate:
        assert any(rank.lost for rank in ranks)


@pytest.mark.parametrize("level", ["fp16", "int8"])
def test_the_mean_is_over_the_values_that_arrived(level: str) -> None:
    """All ranks have the same gradient: whatever is lost, the mean is that gradient."""
    codec = build_codec(Level.parse(level))
    ranks = [Rank(rank, WORLD, NUMEL, tolerance=0.5) for rank in range(WORLD)]
    same = gradients(seed=5)[0]
    loss = seeded_loss(0.1, seed=2)
    results = run(ranks, [same.clone() for _ in ranks], lambda chunk: sharded(chunk, codec), loss=loss)
    assert any(rank.lost for rank in ranks)
    torch.testing.assert_close(results[0], same, atol=0.08 if level == "int8" else 5e-3, rtol=2e-3)


def test_a_reliable_chunk_loses_nothing_even_on_a_lossy_wire() -> None:
    codec = build_codec(Level.parse("fp16"))
    ranks = [Rank(rank, WORLD, NUMEL) for rank in range(WORLD)]
    run(ranks, gradients(0), lambda chunk: sharded(chunk, codec), loss=seeded_loss(0.5, seed=1))
    assert not any(rank.lost for rank in ranks)
    assert all(rank.residual.abs().max() < 0.01 for rank in ranks)


def test_zstd_frames_are_never_sent_with_losses() -> None:
    codec = build_codec(Level.parse("int8+zstd"))
    ranks = [Rank(rank, WORLD, NUMEL, tolerance=0.5) for rank in range(WORLD)]
    results = run(ranks, gradients(0), lambda chunk: sharded(chunk, codec), loss=seeded_loss(0.5, seed=1))
    assert torch.equal(results[0], results[1])
    assert not any(rank.lost for rank in ranks)


def test_a_nan_that_was_lost_does_not_stay_in_the_residual() -> None:
    codec = build_codec(Level.parse("fp16"))
    ranks = [Rank(rank, WORLD, NUMEL, tolerance=0.5) for rank in range(WORLD)]
    parts = gradients(0)
    parts[1][::7] = float("nan")
    run(ranks, parts, lambda chunk: sharded(chunk, codec), loss=seeded_loss(0.3, seed=1))
    assert ranks[1].residual.isfinite().all()
