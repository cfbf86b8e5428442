"""TreePath: sums a bucket over the trees of the plan in force; `off` sends values unchanged.

Trees may have been opened while training went on over another transport. What shards' owners kept there is folded into
the worker's residual, which the trees send.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.compress.base import Weights
from gradwire.compress.energy import energies
from gradwire.level import Level
from gradwire.runtime.bucket_work import BucketWork
from gradwire.runtime.path import PathContext
from gradwire.sites.reducer import TreeReducer
from gradwire.tree.request import BucketRequest
from gradwire.tree.state_transfer import TransferableState
from gradwire.types import Bucket


class TreePath:
    """Passes buckets as float32 values on the CPU to the reducer of the transport in use, where that has one."""

    def __init__(self, context: PathContext) -> None:
        self._context = context

    @property
    def reducer(self) -> TreeReducer | None:
        return self._context.transports.current.reducer

    def in_host_memory(self, buffer: Tensor) -> bool:
        return True

    def submit(self, bucket: Bucket, buffer: Tensor, level: Level, weights: Weights) -> BucketWork:
        context, reducer = self._context, self.reducer
        assert reducer is not None
        values = buffer if buffer.dtype == torch.float32 else buffer.float()
        work = context.work(bucket, level, buffer, values)
        residual = context.feedback.worker(bucket, values.device)
        context.feedback.fold(bucket.index)
        context.scaling.save(bucket)
        context.timer.energies(*energies(bucket.step, residual, values, reducer.energy_ratio))
        wire_bytes, clock = reducer.footprint(level, bucket).wire_bytes, context.reporter.clock
        started = clock.now()
        work.expect(1)
        work.set_traffic(wire_bytes, bucket.numel)

        def done(error: BaseException | None) -> None:
            context.timer.operation(started, clock.now(), wire_bytes)
            work.finished(error)

        reducer.submit(BucketRequest(bucket, level, values, residual, done))
        return work

    def set_replica_state(self, state: TransferableState) -> None:
        """Set the state that a rejoining member receives."""
        if self.reducer is not None:
            self.reducer.set_replica_state(state)
