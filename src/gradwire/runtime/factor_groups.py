"""FactorGroups: collects the buckets of a low-rank step into groups and submits each group's sums to the pipeline.

In: chunks in the order of backward, on the training thread. The P of a bucket is computed at once, on the pipeline's
first station; its sums start with the last bucket of its group (exchange/lowrank.py), or when the step ends. All ranks
have the same buckets in the same order, so they form the same groups.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from gradwire.exchange.buffer_pool import BufferLease
from gradwire.exchange.chunk import Chunk
from gradwire.exchange.lowrank import FactorGroup, ends_group
from gradwire.level import Level
from gradwire.runtime.bucket_work import BucketWork
from gradwire.runtime.path import PathContext
from gradwire.types import Bucket


@dataclass(frozen=True, slots=True)
class OpenGroup:
    """A group that is not sent yet, and the work of its buckets. Sums need one level and one device."""

    level: Level
    device: torch.device
    lease: BufferLease
    factors: FactorGroup
    works: list[BucketWork] = field(default_factory=list)

    def finished(self, error: BaseException | None) -> None:
        for work in self.works:
            work.finished(error)


class FactorGroups:
    """At most one group is open."""

    def __init__(self, context: PathContext) -> None:
        self._context = context
        self._open: OpenGroup | None = None

    def add(self, bucket: Bucket, chunk: Chunk, level: Level, work: BucketWork) -> None:
        """Add a bucket, which is one chunk; send the group if it ends here."""
        group = self._group(level, chunk.gradient.device)
        group.works.append(work)
        layout = self._context.codecs.lowrank(level).layout(bucket.slices)
        # If this fails, the pipeline fails the group's exchange with the same error.
        self._context.pipeline.submit(group.factors.add(chunk, layout), lambda error: None)
        if ends_group(bucket, group.factors.nbytes):
            self.send()

    def send(self) -> None:
        """Send the open group; its last bucket counts the bytes, as in the footprints of exchange/select.py."""
        group, self._open = self._open, None
        if group is not None:
            exchange = group.works[-1].counted(group.factors.exchange(), group.lease)
            self._context.pipeline.submit(exchange, group.finished)

    def _group(self, level: Level, device: torch.device) -> OpenGroup:
        if self._open is not None and (self._open.level, self._open.device) != (level, device):
            self.send()
        if self._open is None:
            context, lease = self._context, BufferLease(self._context.buffers, device)
            factors = FactorGroup(context.codecs.lowrank(level), context.world_size, lease)
            self._open = OpenGroup(level, device, lease, factors)
        return self._open
