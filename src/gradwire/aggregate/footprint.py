"""Footprint: what a level's exchange would put on the network for a bucket, without encoding anything."""

from __future__ import annotations

from gradwire.aggregate.chunk import ALIGN
from gradwire.aggregate.exchange import TINY, gathers
from gradwire.aggregate.summed import footprint_of_sum
from gradwire.compress.build import build_codec
from gradwire.compress.lowrank import LowRank
from gradwire.compress.masked import Masked
from gradwire.flow import Bucket, Footprint, all_reduce_bytes
from gradwire.level import Level


class Footprints:
    """Remembers footprints; the same few are asked for at every step. `own_wire`: lanes run on a wire of ours."""

    def __init__(self, world_size: int, own_wire: bool = False) -> None:
        self._world_size, self._own_wire = world_size, own_wire
        self._known: dict[tuple[object, ...], Footprint] = {}

    def __call__(self, level: Level, bucket: Bucket) -> Footprint:
        # Low rank goes by the parameters' shapes, everything else by the bucket's size.
        key = (level, bucket.numel, bucket.itemsize, bucket.slices if level.select == "lowrank" else ())
        if key not in self._known:
            self._known[key] = footprint(level, bucket, self._world_size, self._own_wire)
        return self._known[key]


def footprint(level: Level, bucket: Bucket, world_size: int, own_wire: bool = False) -> Footprint:
    """Bytes this rank sends, and latencies in a row: one for each direct phase, 2 (W - 1) for the process group's ring,
    which only `off` takes, and only where no wire of our own carries it."""
    others = world_size - 1
    if level.off and not own_wire:
        return Footprint(all_reduce_bytes(bucket.nbytes, world_size), 2 * others)
    if level.off:
        return footprint_of_sum(bucket.nbytes, world_size)
    if level.select == "lowrank":
        layout = LowRank(level).layout(bucket.slices)
        left, right = (footprint_of_sum(4 * numel, world_size) for numel in (layout.left_numel, layout.right_numel))
        return Footprint(left.wire_bytes + right.wire_bytes, left.hops + right.hops)
    if bucket.numel < TINY:
        return footprint_of_sum(4 * bucket.numel, world_size)
    codec = build_codec(level)
    if gathers(codec, bucket.numel, world_size) and level.select != "sharedk":
        return Footprint(codec.size_of(bucket.numel) * others, 1)
    shard = -(-bucket.numel // (world_size * ALIGN)) * ALIGN
    nbytes, hops = 2 * codec.size_of(shard) * others, 2
    if isinstance(codec, Masked) and level.select == "sharedk":
        nbytes, hops = nbytes + codec.mask_size(shard) * others, 3
    return Footprint(nbytes, hops)
