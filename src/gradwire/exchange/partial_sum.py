"""Partial sum: the mean of frames of which some values were lost, and the return of those values to their senders.

A frame's header, indices and scales always arrive; single values may be lost. The owner divides each element by the
number of ranks whose value arrived, so that a loss does not shrink the mean. An element that a sparse frame does not
carry counts as arrived, because its sender kept it on purpose. Lost values return to their sender's residual: on every
rank, what was delivered and its residual always add up to its gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

from gradwire.compress.base import ChunkSpan, Codec
from gradwire.compress.device_codec import DeviceCodec
from gradwire.compress.residual import opened
from gradwire.exchange.chunk import Chunk
from gradwire.transport.lanes.base import Losses

# The second rounding of a residual in a step has another seed.
RETURNED: Final = 1 << 33


def permitted_losses(chunk: Chunk, codec: Codec, frames: Tensor) -> Losses | None:
    """Which parts of these frames may be lost; None where all must arrive."""
    if chunk.tolerance >= 1.0 or codec.level.lossless:
        return None
    critical = tuple(codec.critical(frame) for frame in frames)
    return Losses(chunk.tolerance, critical, tuple(codec.energies(frame) for frame in frames))


def average_shard(chunk: Chunk, codec: Codec, received: Tensor, mean: Tensor, losses: Losses | None) -> None:
    """Write the mean of this rank's shard over the values that arrived, in rank order."""
    span = chunk.span_of(chunk.rank)
    lost = losses.missing if losses is not None else {}
    decode_mean(codec, received, mean, span, lost)
    if not chunk.count_arrivals or not any(lost.values()):
        return
    arrived = torch.full_like(mean, float(chunk.world_size))
    for rank, missing in lost.items():
        arrived[codec.places(received[rank], span, missing)] -= 1.0
    # Never zero: this rank's own values are not sent and cannot be lost.
    mean.mul_(chunk.world_size / arrived)


def decode_mean(
    codec: Codec, frames: Tensor, mean: Tensor, span: ChunkSpan, lost: Mapping[int, object] | None = None
) -> None:
    """Write the mean of one frame of every rank, added in rank order; of those in `lost` some values are missing."""
    if isinstance(codec, DeviceCodec):
        codec.decode_mean(frames, mean, span)
        return
    for rank, frame in enumerate(frames):
        whole = not (lost or {}).get(rank)
        codec.decode(frame, mean, span, 1.0 / len(frames), add=rank > 0, whole=whole)


def return_undelivered(chunk: Chunk, codec: Codec, frames: Tensor, losses: Losses | None) -> None:
    """Add to the residual what this rank sent and its owner did not receive. An owner's report takes a way's delay, and
    the mean does not depend on it: where one is still missing, this happens later, and `frames` are kept until then."""
    if losses is None or losses.reported():
        _add_undelivered(chunk, codec, frames, losses)
        return
    release = chunk.lease.keep(frames)

    def complete() -> None:
        _add_undelivered(chunk, codec, frames, losses)
        release()

    chunk.defer(complete)


def _add_undelivered(chunk: Chunk, codec: Codec, frames: Tensor, losses: Losses | None) -> None:
    for rank, missing in losses.undelivered().items() if losses is not None else ():
        if not missing or not chunk.return_losses:
            continue
        start, end = chunk.shard(rank)
        span = chunk.span_of(rank)
        places = codec.places(frames[rank], span, missing)
        sent = torch.empty(end - start, dtype=torch.float32, device=frames.device)
        codec.decode(frames[rank], sent, span)
        values = sent[places]
        stored = chunk.residual[start:end]
        left = stored[places]
        with opened(left, chunk.kept_seed(chunk.span.start + start) ^ RETURNED) as residual:
            residual.add_(torch.where(values.isfinite(), values, torch.zeros_like(values)))
        stored[places] = left
