"""Cut: into which chunks a bucket is divided at a level, and which of them are summed by owners of shards.

An owner's residual is only read by exchanges that divide the bucket in exactly this way. Whoever changes the cut moves
the owners' residuals into the workers' first (`Feedback.fold`): every exchange reads those.
"""

from __future__ import annotations

from dataclasses import dataclass

from gradwire.aggregate.chunk import ALIGN
from gradwire.aggregate.exchange import sharded
from gradwire.compress.base import Codec
from gradwire.flow import Bucket, ParameterSlice


@dataclass(frozen=True, slots=True)
class Cut:
    """Chunks of `length` elements (the last one may be shorter); `owned`: whether the full ones, and the last one, go
    through owners."""

    length: int
    slices: tuple[ParameterSlice, ...]
    owned: tuple[bool, bool]

    def chunks(self, numel: int) -> list[tuple[int, int]]:
        """Start and end of every chunk of a bucket."""
        return [(start, min(start + self.length, numel)) for start in range(0, numel, self.length)]


def cut(bucket: Bucket, codec: Codec | None, world_size: int, megabytes: float) -> Cut:
    """Chunks of about so many encoded megabytes; one chunk where the level has no frames of its own (low rank)."""
    if codec is None or bucket.numel == 0:
        return Cut(max(bucket.numel, 1), bucket.slices, (False, False))
    pieces = max(1, round(codec.size_of(bucket.numel) / (megabytes * 1e6)))
    unit = ALIGN * world_size
    length = -(-bucket.numel // (pieces * unit)) * unit
    last = bucket.numel % length or length
    owned = sharded(codec, min(length, bucket.numel), world_size), sharded(codec, last, world_size)
    return Cut(length, bucket.slices, owned)
