"""Gather: every rank sends one frame to all and adds up what came, in rank order.

One round trip and one rounding, but (W - 1) frames on every link: best for two ranks and for small frames.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from gradwire.aggregate.chunk import Chunk
from gradwire.aggregate.squeeze import squeezed
from gradwire.compress.base import Codec
from gradwire.transport.base import AllGather, Op


def gather(chunk: Chunk, codec: Codec) -> Iterator[Op]:
    """1. encode, 2. send to all, 3. decode and add in rank order, so that all ranks restore the same bytes."""
    size = codec.size_of(chunk.numel)
    mine = torch.empty(size, dtype=torch.uint8, device=chunk.gradient.device)
    done = codec.encode(chunk.gradient, chunk.residual, mine, chunk.stretch, chunk.seed())  # 1
    chunk.report(chunk.stretch.start, done)
    (mine,) = yield from squeezed(codec, [mine])
    everyone = torch.empty(mine.numel() * chunk.world_size, dtype=torch.uint8, device=mine.device)
    yield AllGather(mine, everyone)  # 2
    weight = 1.0 / chunk.world_size
    for rank, frame in enumerate(everyone.view(chunk.world_size, -1)):  # 3
        codec.decode(frame, chunk.gradient, chunk.stretch, weight, add=rank > 0)
