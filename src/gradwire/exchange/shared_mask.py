"""Shared-mask exchange: the sharded exchange with a mask that one leader per shard chooses; values need no indices.

The leader of shard s at step t is rank (s + t) mod W: the load is even and every rank leads in turn.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from gradwire.compress.shared_mask import SharedMaskCodec
from gradwire.exchange.chunk import Chunk
from gradwire.transport.lanes.base import AllGather, AllToAll, Op


def shared_mask(chunk: Chunk, codec: SharedMaskCodec) -> Iterator[Op]:
    """1. choose the mask of one shard, 2. send masks to all, 3. encode every shard at its mask, 4. exchange, 5. average
    and encode the own shard, 6. send it to all, 7. decode."""
    world, device, step = chunk.world_size, chunk.gradient.device, chunk.span.step
    length = chunk.shard_length()
    led = (chunk.rank - step) % world
    start, end = chunk.shard(led)
    mine = torch.empty(codec.mask_size(length), dtype=torch.uint8, device=device)
    codec.lead(chunk.gradient[start:end], chunk.residual[start:end], mine)  # 1
    masks_sent = torch.empty(world, mine.numel(), dtype=torch.uint8, device=device)
    yield AllGather(mine, masks_sent)  # 2

    frames = torch.empty(world, codec.size_of(length), dtype=torch.uint8, device=device)
    masks = []
    for index in range(world):  # 3
        start, end = chunk.shard(index)
        mask = codec.follow(masks_sent[(index + step) % world], end - start)
        part, left = chunk.gradient[start:end], chunk.residual[start:end]
        with chunk.opened(left, chunk.span.start + start) as residual:
            done = codec.encode_at(part, residual, mask, frames[index], chunk.seed())
        chunk.report(chunk.span.start + start, done)
        masks.append(mask)
    received = torch.empty_like(frames)
    yield AllToAll(frames, received)  # 4

    start, end = chunk.shard(chunk.rank)
    mean = torch.empty(end - start, dtype=torch.float32, device=device)
    for rank in range(world):  # 5
        codec.decode_at(received[rank], mean, masks[chunk.rank], 1.0 / world, add=rank > 0)
    owned = chunk.owner(chunk.span.start + start, end - start)
    with chunk.opened(owned, chunk.span.start + start, as_owner=True) as residual:
        codec.encode_at(mean, residual, masks[chunk.rank], frames[0], chunk.seed(as_owner=True))
    everyone = torch.empty(world, frames.shape[1], dtype=torch.uint8, device=device)
    yield AllGather(frames[0], everyone)  # 6

    for index in range(world):  # 7
        start, end = chunk.shard(index)
        codec.decode_at(everyone[index], chunk.gradient[start:end], masks[index])
