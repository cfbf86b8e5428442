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
from gradwire.device.base import Device
from gradwire.exchange.buffer_pool import BufferLease
from gradwire.exchange.dense_sum import mean, parts
from gradwire.level import Level
from gradwire.runtime.bucket_work import BucketWork, OnFinished, PendingBucket, PlainWork
from gradwire.runtime.device_work import DeviceAllReduce, DeviceTiming
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

    def in_host_memory(self, buffer: Tensor) -> bool:
        """Where a wire of gradwire's own carries it; the process group takes buckets where they are."""
        return self._context.transports.current.own_wire and not (self._detached or buffer.is_sparse)

    def submit(self, bucket: Bucket, buffer: Tensor, level: Level, weights: Weights) -> PendingBucket:
        context, device = self._context, self._context.find_device(buffer)
        if buffer.is_sparse:
            return self._over_group(bucket, buffer.div_(context.world_size).coalesce(), device)
        if context.feedback.pending(bucket):
            context.scaling.begin(bucket.step)
            saved = context.feedback.take(bucket)
            add_residual(buffer, saved.residual, device)
            context.scaling.flushed(saved)
        return (
            self._over_lanes(bucket, buffer)
            if self.in_host_memory(buffer)
            else self._over_group(bucket, buffer, device)
        )

    def _over_group(self, bucket: Bucket, buffer: Tensor, device: Device | None) -> PendingBucket:
        reporter, watcher = self._context.reporter, self._context.watcher
        nbytes = dense_bytes(buffer, self._context.world_size)
        wire_bytes = all_reduce_bytes(nbytes, self._context.world_size)
        sized = replace(bucket, numel=nbytes // bucket.itemsize)
        if device is None:
            done = self._all_reduce(buffer)
            return PlainWork(reporter, done, sized, buffer, wire_bytes, self._timeout, self._measure)
        timing = DeviceTiming(device, watcher, device.current_stream().record_event(), self._timeout)
        done = self._all_reduce(buffer)
        return DeviceAllReduce(reporter, done, timing, sized, buffer, wire_bytes, self._measure)

    def _measure(self, started: float, finished: float, nbytes: int) -> None:
        if not self._detached:
            self._on_finished(started, finished, nbytes)

    def _over_lanes(self, bucket: Bucket, buffer: Tensor) -> BucketWork:
        context = self._context
        work = context.work(bucket, Level(), buffer, buffer)
        chunks = parts(buffer, context.world_size, context.compress.chunk)
        work.set_traffic(0, buffer.numel())  # the operations count the bytes
        work.expect(len(chunks))
        for chunk in chunks:
            lease = BufferLease(context.buffers, buffer.device)
            context.pipeline.submit(work.counted(mean(chunk, context.world_size, lease), lease), work.finished)
        return work


def add_residual(buffer: Tensor, residual: Tensor, device: Device | None) -> None:
    """Add a residual of host memory to a gradient; on a device in the order of the training stream. CUDA waits for the
    stream there, because the residual is not pinned: for one step, pinned memory would be as large as the model."""
    if device is None:
        buffer.add_(residual)
    else:
        device.current_stream().launch(lambda: buffer.add_(residual.to(buffer.device)))


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
