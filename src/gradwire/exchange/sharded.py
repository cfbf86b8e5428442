"""Sharded exchange: rank r owns shard r. Ranks send frames to the owners; owners sum them and send the mean to all.

Two latencies and two encodings, but only 2 (W - 1) / W frames per rank, whatever W. What the second encoding does not
carry stays in the owner residual. As a plan this is W stars, one rooted at each rank.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from gradwire.compress.base import Codec
from gradwire.exchange.chunk import Chunk
from gradwire.exchange.frame_length import trimmed
from gradwire.exchange.partial_sum import average_shard, permitted_losses, return_undelivered
from gradwire.transport.lanes.base import AllGather, AllToAll, Losses, Op


def sharded(chunk: Chunk, codec: Codec) -> Iterator[Op]:
    """1. encode each shard for its owner, 2. exchange, 3. average the own shard and encode the mean, 4. send it to all,
    5. decode every shard, 6. add to the residual what was not delivered."""
    world = chunk.world_size
    frames = chunk.rows(world, codec.size_of(chunk.shard_length()))
    for index in range(world):  # 1
        start, end = chunk.shard(index)
        part, left = chunk.gradient[start:end], chunk.residual[start:end]
        done = chunk.encode(codec, part, left, frames[index], chunk.span_of(index))
        chunk.report(chunk.span.start + start, done)
    losses = permitted_losses(chunk, codec, frames)
    send = yield from trimmed(codec, frames)
    received = chunk.rows(world, send.shape[1], varies=codec.level.lossless)
    yield AllToAll(send, received, losses)  # 2

    # With losses, the sent frames are still needed: to send them again, or to return them to the residual.
    spare = frames[:1] if losses is None else chunk.rows(1, frames.shape[1])
    mine = reduced(chunk, codec, received, spare, losses)  # 3
    chunk.lease.give(received)
    mine = yield from trimmed(codec, mine)
    everyone = chunk.rows(world, mine.shape[1], varies=codec.level.lossless)
    yield AllGather(mine[0], everyone)  # 4

    for index, frame in enumerate(everyone):  # 5
        start, end = chunk.shard(index)
        codec.decode(frame, chunk.gradient[start:end], chunk.span_of(index))
    return_undelivered(chunk, codec, frames, losses)  # 6


def reduced(chunk: Chunk, codec: Codec, received: Tensor, frame: Tensor, losses: Losses | None) -> Tensor:
    """Average the own shard in rank order and encode the mean; the rest stays in the owner residual."""
    start, end = chunk.shard(chunk.rank)
    span = chunk.span_of(chunk.rank)
    mean = chunk.values(end - start)
    average_shard(chunk, codec, received, mean, losses)
    owned = chunk.owner(chunk.span.start + start, end - start)
    chunk.encode(codec, mean, owned, frame[0], span, as_owner=True)
    return frame
