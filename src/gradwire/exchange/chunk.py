"""Chunk: the part of a bucket that one exchange works on, as views of its gradient and residuals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.compress.base import ChunkSpan, Codec, Encoded
from gradwire.compress.device_codec import DeviceCodec
from gradwire.compress.residual import KEPT, opened
from gradwire.compress.values import ALIGN
from gradwire.exchange.buffer_pool import BufferLease


@dataclass(frozen=True, slots=True)
class Chunk:
    """`gradient` is read when the exchange begins and overwritten with the mean when it ends.

    `residual` is this rank's residual of the same elements, as it is stored; `owner(start, numel)` is its residual as
    the owner of a shard, in elements of the bucket. `report(start, encoded)` receives the result of each worker
    encoding.
    """

    span: ChunkSpan
    gradient: Tensor
    residual: Tensor
    owner: Callable[[int, int], Tensor]
    rank: int
    world_size: int
    report: Callable[[int, Encoded], None]
    lease: BufferLease
    stochastic: bool = True
    # The share of the values that a shard's owner waits for until the deadline; 1 is all of them.
    tolerance: float = 1.0
    # On in training; a benchmark switches them off to measure the effect of each.
    count_arrivals: bool = True
    return_losses: bool = True
    # Takes a function that waits for reports and completes `residual`; it must run before `residual` is used again.
    defer: Callable[[Callable[[], None]], None] = lambda complete: complete()

    # Makes memory for values, where these are not in host memory as frames are.
    memory: Callable[[int], Tensor] | None = None

    @property
    def numel(self) -> int:
        return self.gradient.numel()

    def seed(self, as_owner: bool = False) -> int | None:
        """The seed of this rank's rounding; its second encoding, as owner, has another. None rounds to the nearest."""
        return self.span.seed(self.rank) ^ int(as_owner) if self.stochastic else None

    def kept_seed(self, start: int, as_owner: bool = False) -> int:
        """The seed of the rounding of a residual from `start` on, in elements of the bucket."""
        span = ChunkSpan(self.span.step, self.span.bucket, start, 0)
        return span.seed(self.rank) ^ KEPT ^ int(as_owner) << 32

    def encode(
        self, codec: Codec, values: Tensor, stored: Tensor, frame: Tensor, span: ChunkSpan, as_owner: bool = False
    ) -> Encoded:
        """Encode values and a residual of the same elements, in which the rest is kept."""
        seed = self.seed(as_owner)
        if isinstance(codec, DeviceCodec):
            return codec.encode(values, stored, frame, span, seed, self.kept_seed(span.start, as_owner))
        with self.opened(stored, span.start, as_owner) as residual:
            return codec.encode(values, residual, frame, span, seed)

    @contextmanager
    def opened(self, stored: Tensor, start: int, as_owner: bool = False) -> Iterator[Tensor]:
        """A residual in host memory as float32, in memory of the lease where it is stored otherwise. What it is at the
        end is kept."""
        if stored.dtype == torch.float32 or not stored.numel():
            yield stored.float()
            return
        buffer = self.lease.take(4 * stored.numel())
        with opened(stored, self.kept_seed(start, as_owner), buffer.view(torch.float32)) as wide:
            yield wide
        self.lease.give(buffer)

    def rows(self, count: int, nbytes: int, *, varies: bool = False) -> Tensor:
        """A buffer for `count` adjacent frames; `varies`: the size differs from step to step."""
        return self.lease.take(count * nbytes, varies=varies).view(count, nbytes)

    def values(self, numel: int) -> Tensor:
        """float32 values of any content, until the exchange ends or this is called again."""
        if self.memory is not None:
            return self.memory(numel)
        return self.lease.take(4 * numel).view(torch.float32)

    def shard_length(self) -> int:
        """Elements of a full shard; the last shards may be shorter or empty."""
        each = -(-self.numel // self.world_size)
        return -(-each // ALIGN) * ALIGN

    def shard(self, index: int) -> tuple[int, int]:
        """Start and end of a shard within the chunk."""
        length = self.shard_length()
        return min(index * length, self.numel), min((index + 1) * length, self.numel)

    def span_of(self, index: int) -> ChunkSpan:
        start, end = self.shard(index)
        whole = self.span
        return ChunkSpan(whole.step, whole.bucket, whole.start + start, end - start, whole.weights)
