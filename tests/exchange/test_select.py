"""Selection: no exchange yields more operations than the lanes that its level reserves, and each counts as latency."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from gradwire.compress.codec_cache import CodecCache
from gradwire.exchange.chunk import Chunk
from gradwire.exchange.select import TINY, exchange, footprint, lanes_needed
from gradwire.level import Level
from gradwire.transport.lanes.base import Op
from gradwire.types import Bucket, ParameterSlice
from tests.exchange.ranks import Rank, alone, run

LEVELS = [
    "fp16", "int8", "int4", "int2", "topk:0.05+int8", "exactk:0.05", "randk:0.05", "sharedk:0.05+int8", "lowrank:32",
    "lowrank:64+int8", "zstd", "int8+zstd", "topk:0.3+zstd",
]  # fmt: skip
# A full-precision sum, one all-gather of small frames, and shards of large ones; low rank with small and large factors.
SHAPES = [(TINY // 32, 16), (64, 64), (512, 512)]


def made(level: Level, chunk: Chunk, slices: tuple[ParameterSlice, ...]) -> Iterator[Op]:
    codecs = CodecCache()
    if level.select == "lowrank":
        return alone(chunk, codecs.lowrank(level), codecs.lowrank(level).layout(slices))
    return exchange(chunk, codecs.codec(level))


def yielded(level: Level, shape: tuple[int, int], world: int) -> int:
    """The most operations that a rank's exchange of one chunk yields."""
    numel = shape[0] * shape[1]
    slices = (ParameterSlice("w", 0, shape, numel),)
    counts: list[int] = []

    def counted(chunk: Chunk) -> Iterator[Op]:
        for count, op in enumerate(made(level, chunk, slices), start=1):
            yield op
            counts.append(count)

    parts = [torch.randn(numel, generator=torch.Generator().manual_seed(rank)) for rank in range(world)]
    run([Rank(rank, world, numel) for rank in range(world)], parts, counted)
    return max(counts)


@pytest.mark.parametrize("world", [2, 3, 5])
@pytest.mark.parametrize("level", LEVELS)
def test_no_exchange_yields_more_operations_than_its_level_has_lanes(level: str, world: int) -> None:
    parsed = Level.parse(level)
    most = [yielded(parsed, shape, world) for shape in SHAPES]
    assert max(most) <= lanes_needed(parsed), f"operations {most} for chunks of shapes {SHAPES}"


@pytest.mark.parametrize("level", LEVELS)
def test_no_level_reserves_lanes_that_no_exchange_uses(level: str) -> None:
    parsed = Level.parse(level)
    assert max(yielded(parsed, shape, world) for shape in SHAPES for world in (2, 5)) == lanes_needed(parsed)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("level", [level for level in LEVELS if not level.startswith("lowrank")])
def test_a_footprint_counts_the_latency_of_every_operation(level: str, shape: tuple[int, int]) -> None:
    bucket = Bucket(0, 0, shape[0] * shape[1], 4, (), is_last=True)
    assert footprint(Level.parse(level), bucket, world_size=5).hops == yielded(Level.parse(level), shape, 5)
