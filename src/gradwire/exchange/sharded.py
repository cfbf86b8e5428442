"""Shard: rank r owns shard r. Frames go to their owners, owners add up and send the sum's frame to all.

Two round trips and two encodings, but only 2 (W - 1) / W frames on every link however many ranks there are; what the
second encoding leaves out waits in the owner's residual. As a plan this is W stars, one rooted at each rank.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from gradwire.compress.base import Codec
from gradwire.exchange.chunk import Chunk
from gradwire.exchange.frame_length import squeezed
from gradwire.exchange.partial_sum import add_up, give_back, permitted
from gradwire.transport.lanes.base import AllGather, AllToAll, Losses, Op


def sharded(chunk: Chunk, codec: Codec) -> Iterator[Op]:
    """1. encode each shard for its owner, 2. exchange, 3. add up the own shard and encode the mean, 4. send it to all,
    5. decode every shard, 6. take back what did not arrive."""
    world = chunk.world_size
    frames = chunk.rows(world, codec.size_of(chunk.shard_length()))
    for index in range(world):  # 1
        start, end = chunk.shard(index)
        part, left = chunk.gradient[start:end], chunk.residual[start:end]
        done = codec.encode(part, left, frames[index], chunk.stretch_of(index), chunk.seed())
        chunk.report(chunk.stretch.start + start, done)
    losses = permitted(chunk, codec, frames)
    send = yield from squeezed(codec, frames)
    received = chunk.rows(world, send.shape[1], varies=codec.level.lossless)
    yield AllToAll(send, received, losses)  # 2

    # What was sent is still needed where it may have to be sent again, or given back.
    spare = frames[:1] if losses is None else chunk.rows(1, frames.shape[1])
    mine = merged(chunk, codec, received, spare, losses)  # 3
    chunk.lease.give(received)
    mine = yield from squeezed(codec, mine)
    everyone = chunk.rows(world, mine.shape[1], varies=codec.level.lossless)
    yield AllGather(mine[0], everyone)  # 4

    for index, frame in enumerate(everyone):  # 5
        start, end = chunk.shard(index)
        codec.decode(frame, chunk.gradient[start:end], chunk.stretch_of(index))
    give_back(chunk, codec, frames, losses)  # 6


def merged(chunk: Chunk, codec: Codec, received: Tensor, frame: Tensor, losses: Losses | None = None) -> Tensor:
    """Add up the own shard in rank order and encode its mean; what that leaves out waits with the owner."""
    start, end = chunk.shard(chunk.rank)
    stretch = chunk.stretch_of(chunk.rank)
    mean = chunk.lease.take(4 * (end - start)).view(torch.float32)
    add_up(chunk, codec, received, mean, losses)
    owned = chunk.owner(chunk.stretch.start + start, end - start)
    codec.encode(mean, owned, frame[0], stretch, chunk.seed(as_owner=True))
    return frame
