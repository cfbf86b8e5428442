"""Plain: full-precision values are summed. For stretches too small to be worth compressing."""

from __future__ import annotations

from collections.abc import Iterator

from gradwire.exchange.chunk import Chunk
from gradwire.exchange.dense_sum import mean
from gradwire.transport.lanes.base import Op


def plain(chunk: Chunk) -> Iterator[Op]:
    """1. add what waited, 2. the mean over ranks; nothing is left out."""
    chunk.gradient.add_(chunk.residual)  # 1
    chunk.residual.zero_()
    yield from mean(chunk.gradient, chunk.world_size, chunk.lease)  # 2
