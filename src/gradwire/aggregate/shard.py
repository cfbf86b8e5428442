"""Shard: rank r owns shard r. Frames go to their owners, owners add up and send the sum's frame to all.

Two round trips and two encodings, but only 2 (W - 1) / W frames on every link however many ranks there are; what the
second encoding leaves out waits in the owner's residual. As a plan this is W stars, one rooted at each rank.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from gradwire.aggregate.chunk import Chunk
from gradwire.aggregate.squeeze import squeezed
from gradwire.compress.base import Codec
from gradwire.transport.base import AllGather, AllToAll, Op


def shard(chunk: Chunk, codec: Codec) -> Iterator[Op]:
    """1. encode each shard for its owner, 2. exchange, 3. add up the own shard in rank order, 4. encode the mean,
    5. send it to all, 6. decode every shard."""
    world, device = chunk.world_size, chunk.gradient.device
    size = codec.size_of(chunk.shard_length())
    frames = torch.empty(world, size, dtype=torch.uint8, device=device)
    for index in range(world):  # 1
        start, end = chunk.shard(index)
        part, left = chunk.gradient[start:end], chunk.residual[start:end]
        done = codec.encode(part, left, frames[index], chunk.stretch_of(index), chunk.seed())
        chunk.report(chunk.stretch.start + start, done)
    send = torch.cat((yield from squeezed(codec, list(frames))))
    received = torch.empty_like(send)
    yield AllToAll(send, received)  # 2

    start, end = chunk.shard(chunk.rank)
    stretch = chunk.stretch_of(chunk.rank)
    mean = torch.empty(end - start, dtype=torch.float32, device=device)
    for rank, frame in enumerate(received.view(world, -1)):  # 3
        codec.decode(frame, mean, stretch, 1.0 / world, add=rank > 0)
    mine = frames[0]
    owned = chunk.owner(chunk.stretch.start + start, end - start)
    codec.encode(mean, owned, mine, stretch, chunk.seed(as_owner=True))  # 4
    (mine,) = yield from squeezed(codec, [mine])
    everyone = torch.empty(mine.numel() * world, dtype=torch.uint8, device=device)
    yield AllGather(mine, everyone)  # 5

    for index, frame in enumerate(everyone.view(world, -1)):  # 6
        start, end = chunk.shard(index)
        codec.decode(frame, chunk.gradient[start:end], chunk.stretch_of(index))
