"""Plain: one all-reduce of full-precision values. For stretches too small to be worth compressing."""

from __future__ import annotations

from collections.abc import Iterator

from gradwire.aggregate.chunk import Chunk
from gradwire.transport.base import AllReduce, Op


def plain(chunk: Chunk) -> Iterator[Op]:
    """1. add what waited, 2. divide, 3. sum over ranks; nothing is left out."""
    chunk.gradient.add_(chunk.residual)  # 1
    chunk.residual.zero_()
    chunk.gradient.mul_(1.0 / chunk.world_size)  # 2
    yield AllReduce(chunk.gradient)  # 3
