"""Footprint: what a level's exchange would put on the network for a bucket, without encoding anything."""

from __future__ import annotations

from gradwire.aggregate.chunk import ALIGN
from gradwire.aggregate.exchange import TINY, gathers
from gradwire.compress.build import build_codec
from gradwire.compress.lowrank import LowRank
from gradwire.compress.masked import Masked
from gradwire.flow import Bucket, Footprint
from gradwire.level import Level


class Footprints:
    """Remembers footprints; the same few are asked for at every step."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._known: dict[tuple[Level, int, int], Footprint] = {}

    def __call__(self, level: Level, bucket: Bucket) -> Footprint:
        key = (level, bucket.index, bucket.numel)
        if key not in self._known:
            self._known[key] = footprint(level, bucket, self._world_size)
        return self._known[key]


def footprint(level: Level, bucket: Bucket, world_size: int) -> Footprint:
    """Bytes this rank sends, and latencies in a row: a ring takes 2 (W - 1) of them, a direct phase one."""
    others = world_size - 1
    ring = 2 * others
    if level.off or bucket.numel < TINY:
        return Footprint(2 * bucket.numel * bucket.itemsize * others // world_size, ring)
    if level.select == "lowrank":
        return Footprint(2 * LowRank(level).size_of(bucket.slices) * others // world_size, 2 * ring)
    codec = build_codec(level)
    if gathers(codec, bucket.numel, world_size) and level.select != "sharedk":
        return Footprint(codec.size_of(bucket.numel) * others, 1)
    shard = -(-bucket.numel // (world_size * ALIGN)) * ALIGN
    nbytes, hops = 2 * codec.size_of(shard) * others, 2
    if isinstance(codec, Masked) and level.select == "sharedk":
        nbytes, hops = nbytes + codec.mask_size(shard) * others, 3
    return Footprint(nbytes, hops)
