"""Factor sum: the mean over all ranks of low-rank factors, in the level's value format, and of uncompressed values.

Both travel in one message: a frame of the factors, then the values as float32. Everything is added in rank order, so
all ranks restore the same bytes. The algorithms are those of exchange/dense_sum.py, chosen by size: every rank sends
all to all others, or rank r sums shard r and sends its mean to all.

Rounding is to the nearest. What it changes is known to the rank that rounds, once as a worker and, with shards, once as
an owner: `lost` is what is missing of this rank's factors in the mean, so that the caller can keep it.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.compress.base import ChunkSpan, Codec
from gradwire.compress.dense import DenseCodec
from gradwire.compress.values import ALIGN
from gradwire.exchange.buffer_pool import BufferLease
from gradwire.exchange.dense_sum import footprint_of_sum, gathers_whole, summed
from gradwire.exchange.partial_sum import decode_mean
from gradwire.level import Level, Values
from gradwire.transport.lanes.base import AllGather, AllToAll, Op
from gradwire.types import Footprint

FLOAT = 4


@dataclass(frozen=True, slots=True)
class MeanFactors:
    """The means, and what the mean of the factors lacks of this rank's; None: nothing."""

    factors: Tensor
    whole: Tensor
    lost: Tensor | None


@dataclass(frozen=True, slots=True)
class FactorSum:
    """Sums factors in one value format among `world_size` ranks."""

    values: Values
    rank: int
    world_size: int

    def mean(self, factors: Tensor, whole: Tensor, lease: BufferLease) -> Generator[Op, None, MeanFactors]:
        """The means of flat factors and of flat uncompressed values. Neither is changed."""
        if self._exact(factors.numel()):
            both = torch.cat([factors, whole]).mul_(1.0 / self.world_size)
            if both.numel():
                yield from summed(both, self.world_size, lease)
            return MeanFactors(both[: factors.numel()], both[factors.numel() :], None)
        codec = DenseCodec(Level(values=self.values))
        size = codec.size_of(factors.numel()) + FLOAT * whole.numel()
        if gathers_whole(size, self.world_size):
            return (yield from self._gathered(codec, factors, whole, lease))
        return (yield from self._sharded(codec, factors, whole, lease))

    def footprint(self, factors: int, whole: int) -> Footprint:
        """Bytes that each rank sends, and latencies in a row, for so many elements of each."""
        if self._exact(factors):
            return footprint_of_sum(FLOAT * (factors + whole), self.world_size)
        codec, others = DenseCodec(Level(values=self.values)), self.world_size - 1
        size = codec.size_of(factors) + FLOAT * whole
        if gathers_whole(size, self.world_size):
            return Footprint(size * others, 1)
        row = codec.size_of(self._shard(factors)) + FLOAT * -(-whole // self.world_size)
        return Footprint(2 * row * others, 2)

    def _exact(self, factors: int) -> bool:
        return self.values == "fp32" or not factors

    def _shard(self, numel: int) -> int:
        """Elements of a full shard of the factors."""
        return -(-numel // (self.world_size * ALIGN)) * ALIGN

    def _gathered(
        self, codec: Codec, factors: Tensor, whole: Tensor, lease: BufferLease
    ) -> Generator[Op, None, MeanFactors]:
        frame = codec.size_of(factors.numel())
        mine = lease.take(frame + whole.nbytes)
        lost = torch.zeros_like(factors)
        span = _span(factors)
        codec.encode(factors, lost, mine[:frame], span, None)
        mine[frame:].copy_(whole.view(torch.uint8))
        everyone = lease.take(self.world_size * mine.numel()).view(self.world_size, -1)
        yield AllGather(mine, everyone)
        mean = torch.empty_like(factors)
        decode_mean(codec, everyone[:, :frame], mean, span)
        return MeanFactors(mean, _mean(everyone[:, frame:]), lost)

    def _sharded(
        self, codec: Codec, factors: Tensor, whole: Tensor, lease: BufferLease
    ) -> Generator[Op, None, MeanFactors]:
        """1. encode each shard for its owner, 2. exchange, 3. encode the mean of the own shard, 4. send it to all."""
        world, numel = self.world_size, factors.numel()
        length, values = self._shard(numel), -(-whole.numel() // world)
        frame = codec.size_of(length)
        shards = [(min(numel, index * length), min(numel, (index + 1) * length)) for index in range(world)]
        rows = lease.take(world * (frame + FLOAT * values)).view(world, -1)
        lost = torch.zeros_like(factors)
        for row, (start, end) in zip(rows, shards, strict=True):  # 1
            codec.encode(factors[start:end], lost[start:end], row[:frame], _span(factors[start:end]), None)
        padded = whole.new_zeros(world * values)
        padded[: whole.numel()] = whole
        rows[:, frame:].copy_(padded.view(torch.uint8).view(world, -1))
        received = lease.take(rows.nbytes).view(world, -1)
        yield AllToAll(rows, received)  # 2
        start, end = shards[self.rank]
        own, left = factors.new_empty(end - start), factors.new_zeros(end - start)
        decode_mean(codec, received[:, :frame], own, _span(own))
        mine = rows[0]
        codec.encode(own, left, mine[:frame], _span(own), None)  # 3
        lost[start:end].add_(left, alpha=world)
        mine[frame:].copy_(_mean(received[:, frame:]).view(torch.uint8))
        yield AllGather(mine, received)  # 4
        mean = torch.empty_like(factors)
        for row, (start, end) in zip(received, shards, strict=True):
            codec.decode(row[:frame], mean[start:end], _span(mean[start:end]))
        return MeanFactors(mean, _floats(received[:, frame:]).flatten()[: whole.numel()], lost)


def _floats(rows: Tensor) -> Tensor:
    return rows.contiguous().view(torch.float32)


def _mean(rows: Tensor) -> Tensor:
    """The mean of the rows' values, added in their order."""
    values = _floats(rows).mul_(1.0 / len(rows))
    total = values[0].clone()
    for row in values[1:]:
        total.add_(row)
    return total


def _span(values: Tensor) -> ChunkSpan:
    return ChunkSpan(0, 0, 0, values.numel())
