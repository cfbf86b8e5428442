"""Plain exchange: full-precision values are summed. For chunks too small to be worth compressing."""

from __future__ import annotations

from collections.abc import Iterator

from gradwire.exchange.chunk import Chunk
from gradwire.exchange.dense_sum import mean
from gradwire.transport.lanes.base import Op


def plain(chunk: Chunk) -> Iterator[Op]:
    """1. add the residual, 2. compute the mean over ranks."""
    chunk.gradient.add_(chunk.residual)  # 1
    chunk.residual.zero_()
    yield from mean(chunk.gradient, chunk.world_size, chunk.lease)  # 2
