"""Dense sum: uncompressed values are added over all ranks, in rank order, by direct transfers.

A tensor in, the operations that sum it out; then the tensor holds the sum, the same bytes on every rank. Values are
added in their own type, rank 0's first, so the result equals `((v0 + v1) + v2) + ...` exactly and depends neither on
timing nor on the division into chunks. Two algorithms, chosen by size:

    gather   every rank sends all values to all others: one latency, n (W - 1) bytes per rank
    shard    rank r sums shard r and sends it to all: two latencies, 2 n (W - 1) / W bytes per rank

A ring would send as many bytes as the shards and take 2 (W - 1) latencies.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor

from gradwire.compress.values import ALIGN
from gradwire.exchange.buffer_pool import BufferLease
from gradwire.transport.lanes.base import AllGather, AllToAll, Op
from gradwire.types import Footprint, all_reduce_bytes

# Bytes that a gather may send more than shards would: 5 ms at 100 Mbit/s, the latency that it saves on a near network.
EXTRA_BYTES: Final = 64 * 1024


def gathers_whole(nbytes: int, world_size: int) -> bool:
    """Whether to gather instead of using shards; for two ranks always, because both send the same bytes."""
    return nbytes * (world_size - 1) * (world_size - 2) <= EXTRA_BYTES * world_size


def summed(values: Tensor, world_size: int, lease: BufferLease) -> Iterator[Op]:
    """Replace flat, contiguous values by their sum over all ranks."""
    if gathers_whole(values.nbytes, world_size):
        everyone = lease.take(world_size * values.nbytes).view(world_size, -1)
        yield AllGather(values.view(torch.uint8), everyone)
        values.copy_(_added(everyone.view(values.dtype)))
        return
    length = -(-values.numel() // world_size)
    even = length * world_size == values.numel()
    rows = values.view(torch.uint8) if even else lease.take(length * world_size * values.itemsize)
    if not even:
        rows[: values.nbytes].copy_(values.view(torch.uint8))
        rows[values.nbytes :].zero_()
    rows = rows.view(world_size, -1)
    received = lease.take(rows.nbytes).view(world_size, -1)
    yield AllToAll(rows, received)
    yield AllGather(_added(received.view(values.dtype)).view(torch.uint8), rows)
    if not even:
        values.view(torch.uint8).copy_(rows.view(-1)[: values.nbytes])


def mean(values: Tensor, world_size: int, lease: BufferLease) -> Iterator[Op]:
    """The mean as DDP computes it: scaled by the reciprocal first, then summed."""
    values.mul_(1.0 / world_size)
    yield from summed(values, world_size, lease)


def parts(values: Tensor, world_size: int, megabytes: float) -> tuple[Tensor, ...]:
    """Parts of about this many megabytes; all but the last divide evenly into shards."""
    pieces = max(1, round(values.nbytes / (megabytes * 1e6)))
    unit = ALIGN * world_size
    return values.split(max(unit, -(-values.numel() // (pieces * unit)) * unit)) if values.numel() else ()


def footprint_of_sum(nbytes: int, world_size: int) -> Footprint:
    """Bytes that each rank sends, and latencies in a row, for the sum of `nbytes`."""
    if not nbytes:
        return Footprint(0, 0)
    if gathers_whole(nbytes, world_size):
        return Footprint(nbytes * (world_size - 1), 1)
    return Footprint(all_reduce_bytes(nbytes, world_size), 2)


def _added(rows: Tensor) -> Tensor:
    """The sum of the rows in their order, in the first of them."""
    total = rows[0]
    for row in rows[1:]:
        total.add_(row)
    return total
