"""Partial: a sum of frames of which some values did not arrive, and what becomes of those values.

A frame's header, indices and scales always arrive; single values may not. The owner divides each element by the number
of ranks whose value arrived, so that a loss does not shrink the mean; an element that a sparse frame left out counts as
arrived, because its sender kept it on purpose. What did not arrive returns to its sender's residual: for every rank,
what it sent and its residual add up to its gradient whatever the network did.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.compress.base import Codec
from gradwire.exchange.chunk import Chunk
from gradwire.transport.lanes.base import Losses


def permitted(chunk: Chunk, codec: Codec, frames: Tensor) -> Losses | None:
    """What may be lost of these frames; None where nothing may."""
    if chunk.tolerance >= 1.0 or codec.level.lossless:
        return None
    return Losses(chunk.tolerance, tuple(codec.critical(frame) for frame in frames))


def add_up(chunk: Chunk, codec: Codec, received: Tensor, mean: Tensor, losses: Losses | None) -> None:
    """The mean of the own shard over those that arrived, in rank order."""
    stretch = chunk.stretch_of(chunk.rank)
    came = losses.came if losses is not None else {}
    for rank, frame in enumerate(received):
        codec.decode(frame, mean, stretch, 1.0 / chunk.world_size, add=rank > 0, whole=not came.get(rank))
    if not chunk.count_arrivals or not any(came.values()):
        return
    arrived = torch.full_like(mean, float(chunk.world_size))
    for rank, missing in came.items():
        arrived[codec.places(received[rank], stretch, missing)] -= 1.0
    # The own contribution never travels, so no element has none.
    mean.mul_(chunk.world_size / arrived)


def give_back(chunk: Chunk, codec: Codec, frames: Tensor, losses: Losses | None) -> None:
    """Return to the residual what this rank sent and no owner got."""
    if losses is None:
        return
    returned = losses.returned()
    for rank, missing in returned.items():
        if not missing or not chunk.return_losses:
            continue
        start, end = chunk.shard(rank)
        stretch = chunk.stretch_of(rank)
        places = codec.places(frames[rank], stretch, missing)
        sent = torch.empty(end - start, dtype=torch.float32, device=frames.device)
        codec.decode(frames[rank], sent, stretch)
        values = sent[places]
        chunk.residual[start:end][places] += torch.where(values.isfinite(), values, torch.zeros_like(values))
