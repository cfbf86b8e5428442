"""Chunk: the unit an exchange works on. A view into a bucket's gradient and residuals, and who is asking."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from gradwire.compress.base import ChunkSpan, Encoded
from gradwire.exchange.buffer_pool import BufferLease

# Shards begin at multiples of the largest quantisation block, so that blocks never straddle two owners.
ALIGN = 256


@dataclass(frozen=True, slots=True)
class Chunk:
    """`gradient` is read when the exchange begins and overwritten with the mean when it ends.

    `residual` is this rank's memory for the same elements; `owner(start, numel)` is its memory as the owner of a shard,
    in elements of the bucket. `report(start, encoded)` takes what a worker's encoder did at a place of the bucket.
    """

    stretch: ChunkSpan
    gradient: Tensor
    residual: Tensor
    owner: Callable[[int, int], Tensor]
    rank: int
    world_size: int
    report: Callable[[int, Encoded], None]
    lease: BufferLease
    stochastic: bool = True
    # The share of what travels to owners that they wait for until the deadline; 1 is all of it.
    tolerance: float = 1.0
    # Both are how it should be; a benchmark switches them off to show what each is good for.
    count_arrivals: bool = True
    return_losses: bool = True

    @property
    def numel(self) -> int:
        return self.gradient.numel()

    def seed(self, as_owner: bool = False) -> int | None:
        """The seed of this rank's rounding, another one for its second encoding; None rounds to the nearest."""
        return self.stretch.seed(self.rank) ^ int(as_owner) if self.stochastic else None

    def rows(self, count: int, nbytes: int, *, varies: bool = False) -> Tensor:
        """Scratch for `count` frames side by side; `varies` says that they have another size at the next step."""
        return self.lease.take(count * nbytes, varies=varies).view(count, nbytes)

    def shard_length(self) -> int:
        """Elements of a full shard; the last shards may be shorter, or empty."""
        each = -(-self.numel // self.world_size)
        return -(-each // ALIGN) * ALIGN

    def shard(self, index: int) -> tuple[int, int]:
        """Start and end of a shard within the chunk."""
        length = self.shard_length()
        return min(index * length, self.numel), min((index + 1) * length, self.numel)

    def stretch_of(self, index: int) -> ChunkSpan:
        start, end = self.shard(index)
        whole = self.stretch
        return ChunkSpan(whole.step, whole.bucket, whole.start + start, end - start, whole.weights)
