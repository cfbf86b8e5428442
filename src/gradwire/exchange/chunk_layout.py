"""Chunk layout: how a bucket is divided into chunks at a level, and which chunks are summed by owners of shards.

An owner residual is only read by exchanges with exactly this layout. A change of layout must first fold the owner
residuals into the worker residuals (`ErrorFeedback.fold`), which every exchange reads.
"""

from __future__ import annotations

from dataclasses import dataclass

from gradwire.compress.base import Codec
from gradwire.compress.values import ALIGN
from gradwire.exchange.select import algorithm
from gradwire.types import Bucket, ParameterSlice


@dataclass(frozen=True, slots=True)
class ChunkLayout:
    """Chunks of `length` elements (the last one may be shorter). `owned`: whether owners of shards sum the full chunks,
    and the last one."""

    length: int
    slices: tuple[ParameterSlice, ...]
    owned: tuple[bool, bool]

    def chunks(self, numel: int) -> list[tuple[int, int]]:
        """Start and end of every chunk of a bucket."""
        return [(start, min(start + self.length, numel)) for start in range(0, numel, self.length)]


def chunk_layout(bucket: Bucket, codec: Codec | None, world_size: int, megabytes: float) -> ChunkLayout:
    """Chunks of about this many encoded megabytes; one chunk where the level has no frames (low rank)."""
    if codec is None or bucket.numel == 0:
        return ChunkLayout(max(bucket.numel, 1), bucket.slices, (False, False))
    pieces = max(1, round(codec.size_of(bucket.numel) / (megabytes * 1e6)))
    unit = ALIGN * world_size
    length = -(-bucket.numel // (pieces * unit)) * unit
    last = bucket.numel % length or length
    full, rest = (algorithm(codec, numel, world_size).owners for numel in (min(length, bucket.numel), last))
    return ChunkLayout(length, bucket.slices, (full, rest))
