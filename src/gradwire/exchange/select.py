"""Select: which exchange carries a chunk at a level, its bytes and latencies, and how many lanes it needs.

An exchange is a generator of operations; the pipeline starts its i-th operation on lane i, so an exchange must not
yield more operations than there are lanes. Each algorithm has one row here. The choice depends only on level, sizes and
world size, so it is the same on all ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from gradwire.compress.base import Codec
from gradwire.compress.build import build_codec
from gradwire.compress.lowrank import FactorLayout, LowRank
from gradwire.compress.shared_mask import SharedMaskCodec
from gradwire.compress.values import ALIGN
from gradwire.exchange.allgather import allgather
from gradwire.exchange.chunk import Chunk
from gradwire.exchange.dense_sum import footprint_of_sum
from gradwire.exchange.factor_sum import FactorSum
from gradwire.exchange.lowrank import ends_group
from gradwire.exchange.plain import plain
from gradwire.exchange.sharded import sharded
from gradwire.exchange.shared_mask import shared_mask
from gradwire.level import Level
from gradwire.transport.lanes.base import Op
from gradwire.types import Bucket, Footprint, all_reduce_bytes

# Below this many elements a full-precision sum takes a few packets; compressing saves nothing.
TINY: Final = 1024
# Frames this small cost more in latency than in bytes: one all-gather instead of two phases.
SMALL_FRAME: Final = 16 * 1024


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One way to compute the mean of a chunk.

    `operations` is the most that it yields, `length_operations` how many more when a lossless stage makes the length of
    frames unknown. `owners`: it keeps owner residuals of shards.
    """

    name: str
    operations: int
    length_operations: int
    owners: bool


PLAIN: Final = Algorithm("plain", 2, 0, owners=False)
ALLGATHER: Final = Algorithm("allgather", 1, 1, owners=False)
SHARDED: Final = Algorithm("sharded", 2, 2, owners=True)
SHARED_MASK: Final = Algorithm("shared_mask", 3, 0, owners=True)
LOWRANK: Final = Algorithm("lowrank", 4, 0, owners=False)


def candidates(level: Level) -> tuple[Algorithm, ...]:
    """The algorithms that a level's chunks may use."""
    if level.select == "lowrank":
        return (LOWRANK,)
    return (PLAIN, SHARED_MASK) if level.select == "sharedk" else (PLAIN, ALLGATHER, SHARDED)


def lanes_needed(level: Level) -> int:
    """The most operations that an exchange of this level yields."""
    return max(one.operations + (one.length_operations if level.lossless else 0) for one in candidates(level))


def algorithm(codec: Codec, numel: int, world_size: int) -> Algorithm:
    """The algorithm of a chunk of frames. For two ranks an all-gather sends no more than shards, and rounds once."""
    if numel < TINY:
        return PLAIN
    if codec.level.select == "sharedk":
        return SHARED_MASK
    return ALLGATHER if world_size <= 2 or codec.size_of(numel) <= SMALL_FRAME else SHARDED


def exchange(chunk: Chunk, codec: Codec) -> Iterator[Op]:
    """The exchange of a chunk's frames."""
    chosen = algorithm(codec, chunk.numel, chunk.world_size)
    if chosen is PLAIN:
        return plain(chunk)
    if isinstance(codec, SharedMaskCodec) and chosen is SHARED_MASK:
        return shared_mask(chunk, codec)
    return allgather(chunk, codec) if chosen is ALLGATHER else sharded(chunk, codec)


class FootprintTable:
    """The footprints of a step's buckets, cached; the same few are needed at every step. `own_wire`: the lanes use one
    of gradwire's wires."""

    def __init__(self, world_size: int, own_wire: bool = False) -> None:
        self._world_size, self._own_wire = world_size, own_wire
        self._known: dict[tuple[object, ...], Footprint] = {}
        self._known_steps: dict[tuple[object, ...], tuple[Footprint, ...]] = {}

    def __call__(self, level: Level, buckets: Sequence[Bucket]) -> tuple[Footprint, ...]:
        """Of each bucket of a step. With low rank the last bucket of a group sends the bytes of the group."""
        if level.select != "lowrank":
            return tuple(self._footprint(level, bucket) for bucket in buckets)
        # Low rank depends on the parameters' shapes and on the other buckets, all other levels on the bucket's size.
        key = (level, *((bucket.index, bucket.is_last, bucket.slices) for bucket in buckets))
        if key not in self._known_steps:
            self._known_steps[key] = footprints_of_factors(LowRank(level), buckets, self._world_size)
        return self._known_steps[key]

    def _footprint(self, level: Level, bucket: Bucket) -> Footprint:
        key = (level, bucket.numel, bucket.itemsize)
        if key not in self._known:
            self._known[key] = footprint(level, bucket, self._world_size, self._own_wire)
        return self._known[key]


def footprint(level: Level, bucket: Bucket, world_size: int, own_wire: bool = False) -> Footprint:
    """Bytes that this rank sends, and latencies in a row: one for each direct operation, 2 (W - 1) for the process
    group's ring, which only `off` uses, and only without one of gradwire's wires. Of a level of frames, or of `off`."""
    if level.off and not own_wire:
        return Footprint(all_reduce_bytes(bucket.nbytes, world_size), 2 * (world_size - 1))
    if level.off:
        return footprint_of_sum(bucket.nbytes, world_size)
    return _footprint_of_frames(build_codec(level), bucket.numel, world_size)


def footprints_of_factors(factors: LowRank, buckets: Sequence[Bucket], world_size: int) -> tuple[Footprint, ...]:
    """Of each bucket: the whole group's for the last bucket of a group, nothing for the others. Buckets that are still
    held back when the step ends are a group."""
    found: list[Footprint] = []
    group: list[FactorLayout] = []
    sums = FactorSum(factors.level.values, 0, world_size)
    for place, bucket in enumerate(buckets, start=1):
        group.append(factors.layout(bucket.slices))
        if place < len(buckets) and not ends_group(bucket, sum(map(factors.nbytes, group))):
            found.append(Footprint(0, 0))
            continue
        left = sums.footprint(sum(layout.left_numel for layout in group), sum(layout.whole_numel for layout in group))
        right = sums.footprint(sum(layout.right_numel for layout in group), 0)
        found.append(Footprint(left.wire_bytes + right.wire_bytes, left.hops + right.hops))
        group = []
    return tuple(found)


def _footprint_of_frames(codec: Codec, numel: int, world_size: int) -> Footprint:
    chosen, others = algorithm(codec, numel, world_size), world_size - 1
    lengths = chosen.length_operations if codec.level.lossless else 0
    if chosen is PLAIN:
        return footprint_of_sum(4 * numel, world_size)
    if chosen is ALLGATHER:
        return Footprint(codec.size_of(numel) * others, chosen.operations + lengths)
    shard_length = -(-numel // (world_size * ALIGN)) * ALIGN
    nbytes = 2 * codec.size_of(shard_length) * others
    if isinstance(codec, SharedMaskCodec) and chosen is SHARED_MASK:
        nbytes += codec.mask_size(shard_length) * others
    return Footprint(nbytes, chosen.operations + lengths)
