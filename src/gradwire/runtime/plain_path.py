"""PlainPath: synchronises a bucket as DDP does without gradwire, to the bit.

The all-reduce runs on the model's process group. Where the session has a wire of its own, dense values go over that
wire instead, in chunks, summed in rank order. Residuals left by compressed steps are added once. Sparse gradients take
this path at every level, always by the process group.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from gradwire.compress.base import Weights
from gradwire.exchange.buffer_pool import BufferLease
from gradwire.exchange.dense_sum import mean, parts
from gradwire.level import Level
from gradwire.runtime.bucket_work import BucketWork, OnFinished, PlainWork
from gradwire.runtime.path import PathContext
from gradwire.types import Bucket, all_reduce_bytes

AllReduceMean = Callable[[Tensor], Future[list[Tensor]]]


class PlainPath:
    """`timeout` is how many seconds a step may wait; None leaves that to the process group, as plain DDP does."""

    def __init__(
        self,
        context: PathContext,
        all_reduce: AllReduceMean,
        on_finished: OnFinished,
        *,
        timeout: float | None = None,
    ) -> None:
        self._context = context
        self._all_reduce = all_reduce
        self._on_finished = on_finished
        self._timeout = timeout
        self._detached = False

    def detach(self) -> None:
        """From now on use the process group only, and measure nothing."""
        self._detached = True

    def submit(self, bucket: Bucket, buffer: Tensor, level: Level, weights: Weights) -> BucketWork | PlainWork:
        context = self._context
        if buffer.is_sparse:
            return self._over_group(bucket, buffer.div_(context.world_size).coalesce())
        if context.feedback.pending(bucket):
            context.scaling.begin(bucket.step)
            context.scaling.flushed(context.feedback.flush(bucket, buffer))
        if context.transports.current.own_wire and not self._detached:
            return self._over_lanes(bucket, buffer)
        return self._over_group(bucket, buffer)

    def _over_group(self, bucket: Bucket, buffer: Tensor) -> PlainWork:
        nbytes = dense_bytes(buffer, self._context.world_size)
        wire_bytes = all_reduce_bytes(nbytes, self._context.world_size)
        sized = replace(bucket, numel=nbytes // bucket.itemsize)
        done = self._all_reduce(buffer)
        return PlainWork(self._context.reporter, done, sized, buffer, wire_bytes, self._timeout, self._measure)

    def _measure(self, started: float, finished: float, nbytes: int) -> None:
        if not self._detached:
            self._on_finished(started, finished, nbytes)

    def _over_lanes(self, bucket: Bucket, buffer: Tensor) -> BucketWork:
        context = self._context
        values = buffer if buffer.device.type == "cpu" else buffer.cpu()
        work = context.work(bucket, Level(), buffer, values)
        chunks = parts(values, context.world_size, context.compress.chunk)
        work.set_traffic(0, values.numel())  # the operations count the bytes
        work.expect(len(chunks))
        for chunk in chunks:
            lease = BufferLease(context.buffers, values.device)
            context.pipeline.submit(work.counted(mean(chunk, context.world_size, lease), lease), work.finished)
        return work


def dense_bytes(buffer: Tensor, world_size: int) -> int:
    """Bytes of the dense gradient whose all-reduce sends as much as this one's. Of a sparse gradient every rank sends
    its indices and values to every other rank."""
    if not buffer.is_sparse:
        return buffer.nbytes
    return (buffer.indices().nbytes + buffer.values().nbytes) * world_size // 2


def ddp_all_reduce(group: dist.ProcessGroup) -> AllReduceMean:
    """What DDP does without a hook, to the bit: scale by the reciprocal, then sum on DDP's own group. Sparse gradients
    arrive divided: entries of the same index are added after the division."""
    scale = 1.0 / group.size()

    def all_reduce(buffer: Tensor) -> Future[list[Tensor]]:
        if not buffer.is_sparse:
            buffer.mul_(scale)
        return dist.all_reduce(buffer, group=group, async_op=True).get_future()  # type: ignore[no-any-return]

    return all_reduce


def hsdp_all_reduce(group: dist.ProcessGroup) -> AllReduceMean:
    """What HSDP does without gradwire, to the bit: the backend's own average."""

    def all_reduce(buffer: Tensor) -> Future[list[Tensor]]:
        work = dist.all_reduce(buffer, dist.ReduceOp.AVG, group=group, async_op=True)
        return work.get_future()  # type: ignore[no-any-return]

    return all_reduce
