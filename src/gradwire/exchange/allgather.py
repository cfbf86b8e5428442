"""All-gather exchange: every rank sends one frame to all others and adds up all frames, in rank order.

One latency and one rounding, but W - 1 frames per rank: best for two ranks and for small frames.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradwire.compress.base import Codec
from gradwire.exchange.chunk import Chunk
from gradwire.exchange.frame_length import trimmed
from gradwire.exchange.partial_sum import decode_mean
from gradwire.transport.lanes.base import AllGather, Op


def allgather(chunk: Chunk, codec: Codec) -> Iterator[Op]:
    """1. encode, 2. send to all, 3. decode and add in rank order, so that all ranks restore the same bytes."""
    mine = chunk.rows(1, codec.size_of(chunk.numel))
    done = chunk.encode(codec, chunk.gradient, chunk.residual, mine[0], chunk.span)  # 1
    chunk.report(chunk.span.start, done)
    mine = yield from trimmed(codec, mine)
    everyone = chunk.rows(chunk.world_size, mine.shape[1], varies=codec.level.lossless)
    yield AllGather(mine[0], everyone)  # 2
    decode_mean(codec, everyone, chunk.gradient, chunk.span)  # 3
