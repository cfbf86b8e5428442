"""DevicePath: encodes buckets of device memory on the device, so that only frames cross the bus.

1. Training thread: an event behind the gradient and its residual; exchanges go to the pipeline. Nothing waits.
2. The pipeline's first thread: its stream waits for the event; kernels encode, the frame is copied to host memory.
3. Exchanges run as those of host memory; decoding copies received frames to the device, and kernels add them.
4. The thread that ends the last exchange completes the bucket's future on its stream, which waits for those of the
   other exchanges.

Residuals are on the device or, with `compress.residual_memory = "host"`, in host memory: then a pipeline thread copies
those of a shard to the device before it encodes, and back. Levels without kernels, momentum correction and transports
that lose values take the host path (host_path.py); the frames are the same, so ranks need not agree on where they
encode.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gradwire.compress.base import ChunkSpan
from gradwire.compress.device_codec import DeviceCodec, device_codec, encodes_on_device, load_kernels
from gradwire.compress.device_memory import FRAME_SLOT, DeviceMemory
from gradwire.compress.energy import energies, sampled_span
from gradwire.compress.error_feedback import HOST, host_zeros
from gradwire.device.base import Device, DeviceEvent
from gradwire.exchange.buffer_pool import BufferLease
from gradwire.exchange.chunk import Chunk
from gradwire.exchange.dense_sum import mean
from gradwire.exchange.select import PLAIN, algorithm, exchange
from gradwire.level import Level
from gradwire.runtime.bucket_work import BucketWork
from gradwire.runtime.compressed_path import CompressedPath
from gradwire.runtime.device_work import DeviceWork
from gradwire.runtime.host_path import DeviceBucket
from gradwire.runtime.path import BucketPath, PathContext
from gradwire.transport.lanes.base import Op


@dataclass(frozen=True, slots=True)
class _Exchanged:
    """A bucket in flight. `values` are its gradient in float32, `ended` the events behind each exchange."""

    staged: DeviceBucket
    values: Tensor
    residual: Tensor
    ready: DeviceEvent
    memory: DeviceMemory
    inner: BucketWork
    outer: DeviceWork
    ended: list[DeviceEvent] = field(default_factory=list)


class DevicePath:
    """`compressed` divides buckets into chunks, here as there."""

    def __init__(self, context: PathContext, compressed: CompressedPath, slot: int = FRAME_SLOT) -> None:
        load_kernels()
        self._context = context
        self._compressed = compressed
        self._slot = slot
        self._memories: dict[Device, DeviceMemory] = {}
        self._codecs: dict[tuple[Device, Level], DeviceCodec] = {}
        self._values: dict[int, Tensor] = {}
        self._host_residuals = context.compress.residual_memory == "host"

    def takes(self, path: BucketPath, level: Level) -> bool:
        """Whether a bucket that would go by `path` is encoded on the device."""
        context = self._context
        momentum = level.sparse and context.compress.momentum > 0
        whole = context.transports.current.tolerance >= 1.0
        return path is self._compressed and encodes_on_device(level) and whole and not momentum

    def submit(self, staged: DeviceBucket, level: Level) -> DeviceWork:
        context, bucket = self._context, staged.bucket
        memory = self._memory_of(staged.device)
        residual = context.feedback.worker(bucket, HOST if self._host_residuals else staged.buffer.device)
        chunks = self._compressed.layout(bucket, level).chunks(bucket.numel)
        context.scaling.save(bucket)
        values = self._values_of(staged)
        ready = staged.device.current_stream().record_event()  # 1: behind what was launched just now, too
        inner = BucketWork(context.reporter, context.world_size, bucket, level, values, values)
        work = _Exchanged(staged, values, residual, ready, memory, inner, DeviceWork(staged.device, staged.buffer))
        inner.expect(len(chunks))
        inner.future.add_done_callback(lambda _: self._complete(work))
        codec = self._codec(staged.device, level, memory)
        for start, end in chunks:
            chunk = self._chunk(work, start, end)
            small = algorithm(codec, chunk.numel, context.world_size) is PLAIN
            ops = self._summed_on_host(work, chunk) if small else exchange(chunk, codec)
            ops = self._on_streams(ops, work, first=start == 0)
            context.pipeline.submit(inner.counted(ops, chunk.lease), inner.finished)
        return work.outer

    def _chunk(self, work: _Exchanged, start: int, end: int) -> Chunk:
        context, bucket, memory = self._context, work.staged.bucket, work.memory
        return Chunk(
            ChunkSpan(bucket.step, bucket.index, start, end - start),
            work.values[start:end],
            work.residual[start:end],
            lambda place, numel: context.feedback.owner(
                bucket, (place, numel), host_zeros if self._host_residuals else memory.mine().zeros
            ),
            context.rank,
            context.world_size,
            work.inner.on_encoded,
            BufferLease(context.buffers, HOST),
            context.compress.rounding == "stochastic",
            memory=lambda numel: memory.mine().values(numel),
        )

    def _on_streams(self, ops: Iterator[Op], work: _Exchanged, first: bool) -> Iterator[Op]:
        """The operations of an exchange. The first exchange of a bucket begins when the gradient is there; the others
        follow it, on the same thread's stream."""
        if first:
            self._begin(work)  # 2
        yield from ops  # 3
        work.ended.append(work.memory.mine().record_event())

    def _summed_on_host(self, work: _Exchanged, chunk: Chunk) -> Iterator[Op]:
        """exchange/plain.py for a chunk that is too small to be worth encoding: its values go through host memory."""
        mine, host = work.memory.mine(), torch.empty(chunk.numel, dtype=torch.float32)
        if not self._host_residuals:
            mine.stream.launch(lambda: chunk.gradient.add_(chunk.residual))
            mine.stream.launch(chunk.residual.zero_)
        mine.to_host(chunk.gradient, host)
        if self._host_residuals:
            host.add_(chunk.residual)
            chunk.residual.zero_()
        yield from mean(host, chunk.world_size, chunk.lease)
        work.memory.mine().to_device(host, chunk.gradient)

    def _begin(self, work: _Exchanged) -> None:
        mine, buffer = work.memory.mine(), work.staged.buffer
        mine.stream.wait_event(work.ready)
        if work.values is not buffer:
            mine.stream.launch(lambda: work.values.copy_(buffer))
        span = sampled_span(work.staged.bucket.step, work.values.numel())
        waits, fresh = work.residual[span], work.values[span]
        on_host = torch.empty(2, waits.numel(), dtype=torch.float32)
        if self._host_residuals:
            on_host[0].copy_(waits)
        else:
            mine.to_host(waits, on_host[0])
        mine.to_host(fresh, on_host[1])
        self._context.timer.energies(*energies(0, on_host[0], on_host[1]))

    def _complete(self, work: _Exchanged) -> None:
        try:
            mine = work.memory.mine()
            work.inner.wait()  # it is done: this raises its error
            for event in work.ended:
                mine.stream.wait_event(event)
            # Known by now: with compressed levels either every bucket's residuals were saved before this, or none's.
            found = not self._context.scaling.checks or self._finite(work)
            if work.values is not work.staged.buffer:
                mine.stream.launch(lambda: work.staged.buffer.copy_(work.values))
            work.outer.complete(mine.stream, all_finite=lambda: found)  # 4
        except BaseException as error:  # the training thread waits for it
            work.outer.fail(error)

    def _finite(self, work: _Exchanged) -> bool:
        mine, host = work.memory.mine(), torch.empty(2, dtype=torch.float32)
        ends = mine.take("ends", 8).view(torch.float32)
        mine.stream.launch(lambda: torch.stack(torch.aminmax(work.values), out=ends))
        mine.to_host(ends, host)
        return bool(host.isfinite().all())

    def _memory_of(self, device: Device) -> DeviceMemory:
        if device not in self._memories:
            self._memories[device] = DeviceMemory(device, self._slot)
        return self._memories[device]

    def _codec(self, device: Device, level: Level, memory: DeviceMemory) -> DeviceCodec:
        if (device, level) not in self._codecs:
            self._codecs[device, level] = device_codec(self._context.codecs.codec(level), memory, self._host_residuals)
        return self._codecs[device, level]

    def _values_of(self, staged: DeviceBucket) -> Tensor:
        """The gradient itself, or float32 memory for one in half precision, kept from step to step."""
        index, buffer = staged.bucket.index, staged.buffer
        if buffer.dtype == torch.float32:
            return buffer
        known = self._values.get(index)
        if known is None or known.numel() != buffer.numel():
            stream = staged.device.current_stream()
            known = self._values[index] = staged.device.empty(buffer.numel(), torch.float32, stream)
        return known
