"""CompressedPath: divides a bucket into chunks, encodes each and exchanges it through the pipeline.

1. float32 values of the bucket, and this rank's residual for them
2. chunks of about `compress.chunk` encoded megabytes
3. the momentum correction of sparse levels, where it is configured
4. an exchange per chunk; the work ends with the last one. With low rank a bucket is one chunk, and several buckets
   share an exchange (runtime/factor_groups.py)
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.compress.base import ChunkSpan, Weights
from gradwire.compress.energy import energies
from gradwire.exchange.buffer_pool import BufferLease
from gradwire.exchange.chunk import Chunk
from gradwire.exchange.chunk_layout import ChunkLayout, chunk_layout
from gradwire.exchange.select import exchange
from gradwire.level import Level
from gradwire.runtime.bucket_work import BucketWork
from gradwire.runtime.factor_groups import FactorGroups
from gradwire.runtime.path import PathContext
from gradwire.types import Bucket


class CompressedPath:
    """Where the transport tolerates loss, an owner waits for a share of each frame only."""

    def __init__(self, context: PathContext) -> None:
        self._context = context
        self._stochastic = context.compress.rounding == "stochastic"
        self._layouts: dict[int, ChunkLayout] = {}
        self._groups = FactorGroups(context)

    def in_host_memory(self, buffer: Tensor) -> bool:
        return True

    def submit(self, bucket: Bucket, buffer: Tensor, level: Level, weights: Weights) -> BucketWork:
        context = self._context
        values = buffer if buffer.dtype == torch.float32 else buffer.float()  # 1
        work = context.work(bucket, level, buffer, values)
        residual = context.feedback.worker(bucket, values.device)
        chunks = self.layout(bucket, level).chunks(bucket.numel)  # 2
        context.scaling.save(bucket)
        if level.sparse and context.compress.momentum:  # 3
            work.velocity = context.feedback.velocity(bucket, values, context.compress.momentum)
        context.timer.energies(*energies(bucket.step, residual, values))
        work.expect(len(chunks))
        for start, end in chunks:  # 4
            chunk = Chunk(
                ChunkSpan(bucket.step, bucket.index, start, end - start, weights),
                values[start:end],
                residual[start:end],
                lambda place, numel: context.feedback.owner(bucket, (place, numel)),
                context.rank,
                context.world_size,
                work.on_encoded,
                BufferLease(context.buffers, values.device),
                self._stochastic,
                context.transports.current.tolerance,
                defer=lambda complete: context.feedback.defer(bucket, complete),
            )
            if level.select == "lowrank":
                self._groups.add(bucket, chunk, level, work)
            else:
                ops = exchange(chunk, context.codecs.codec(level))
                context.pipeline.submit(work.counted(ops, chunk.lease), work.finished)
        return work

    def end_step(self) -> None:
        """Send what waits for later buckets: there are none."""
        self._groups.send()

    def layout(self, bucket: Bucket, level: Level) -> ChunkLayout:
        """The bucket's chunks at this level; drops what belongs to another layout."""
        context = self._context
        codec = None if level.select == "lowrank" else context.codecs.codec(level)
        layout = chunk_layout(bucket, codec, context.world_size, context.compress.chunk)
        if self._layouts.get(bucket.index) != layout:
            context.feedback.fold(bucket.index)
            context.buffers.clear()
            context.codecs.forget(bucket.index)
            self._layouts[bucket.index] = layout
        return layout
