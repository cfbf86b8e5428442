"""Every exchange restores the same bytes on all ranks, and restored + residuals = the mean of the gradients."""

from __future__ import annotations

import pytest
import torch

from gradwire.compress.build import build_codec
from gradwire.exchange.allgather import allgather
from gradwire.exchange.select import exchange
from gradwire.exchange.sharded import sharded
from gradwire.level import Level
from tests.exchange.ranks import Rank, run

LEVELS = [
    "fp16", "bf16", "int8", "int4", "int2", "topk:0.05", "topk:0.05+int8", "exactk:0.02+fp16", "randk:0.1+int8",
    "sharedk:0.05", "sharedk:0.05+int4", "sharedk:0.05+int2", "int8+zstd", "topk:0.1+int4+zstd",
]  # fmt: skip


def gradients(world: int, numel: int, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(numel, generator=generator) * (1 + rank) for rank in range(world)]


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("level", LEVELS)
def test_ranks_restore_the_same_bytes_and_nothing_is_lost(level: str, world: int) -> None:
    numel = 20_011
    codec = build_codec(Level.parse(level))
    ranks = [Rank(rank, world, numel) for rank in range(world)]
    given = torch.zeros(numel, dtype=torch.float64)
    restored = torch.zeros(numel, dtype=torch.float64)
    for step in range(4):
        parts = gradients(world, numel, seed=step)
        results = run(ranks, parts, lambda chunk: exchange(chunk, codec), step)
        for result in results[1:]:
            assert torch.equal(result, results[0])
        given += torch.stack(parts).double().mean(0)
        restored += results[0].double()
    owed = torch.stack([rank.owed(numel).double() for rank in ranks]).sum(0)
    torch.testing.assert_close(restored + owed, given, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("form", [allgather, sharded])
def test_both_forms_of_a_dense_level_come_close_to_the_mean(form) -> None:  # type: ignore[no-untyped-def]
    codec = build_codec(Level.parse("fp16"))
    ranks = [Rank(rank, 3, 5000) for rank in range(3)]
    parts = gradients(3, 5000, seed=1)
    results = run(ranks, parts, lambda chunk: form(chunk, codec))
    torch.testing.assert_close(results[0], torch.stack(parts).mean(0), atol=5e-3, rtol=2e-3)


def test_tiny_chunks_are_averaged_exactly() -> None:
    codec = build_codec(Level.parse("topk:0.01"))
    ranks = [Rank(rank, 3, 100) for rank in range(3)]
    parts = gradients(3, 100, seed=2)
    results = run(ranks, parts, lambda chunk: exchange(chunk, codec))
    torch.testing.assert_close(results[1], torch.stack(parts).mean(0))


@pytest.mark.parametrize("level", ["fp16", "int8", "topk:0.05+int8", "sharedk:0.05", "exactk:0.05"])
def test_a_nan_reaches_every_rank_and_no_residual(level: str) -> None:
    codec = build_codec(Level.parse(level))
    ranks = [Rank(rank, 3, 8192) for rank in range(3)]
    parts = gradients(3, 8192, seed=3)
    parts[1][4000] = float("nan")
    parts[2][17] = float("inf")
    results = run(ranks, parts, lambda chunk: exchange(chunk, codec))
    if level != "sharedk:0.05":  # a shared mask may not select that element; then all ranks get finite values
        assert not results[0][4000].isfinite()
        assert not results[0][17].isfinite()
    assert sum(encoded.nonfinite for rank in ranks for encoded in rank.reports) >= 2
    for rank in ranks:
        assert rank.owed(8192).isfinite().all()
