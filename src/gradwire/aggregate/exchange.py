"""Which exchange carries a level, and how many operations it takes in a row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gradwire.aggregate.chunk import Chunk
from gradwire.aggregate.factored import factored
from gradwire.aggregate.gather import gather
from gradwire.aggregate.plain import plain
from gradwire.aggregate.shard import shard
from gradwire.aggregate.shared import shared
from gradwire.compress.base import Codec
from gradwire.compress.codecs import Codecs
from gradwire.compress.masked import Masked
from gradwire.flow import ParameterSlice
from gradwire.level import Level
from gradwire.transport.base import Op

# Below this many elements a full-precision sum is a packet or two; compressing saves nothing.
TINY = 1024
# Frames this small cost more in round trips than in bytes: one gather instead of two phases.
SMALL_FRAME = 16 * 1024


def exchange_at(level: Level, chunk: Chunk, slices: Sequence[ParameterSlice], codecs: Codecs) -> Iterator[Op]:
    """The exchange of a level: that of its frames, or of its factors."""
    if level.select == "lowrank":
        lowrank = codecs.lowrank(level)
        return factored(chunk, lowrank, lowrank.layout(slices))
    return exchange(chunk, codecs.codec(level))


def exchange(chunk: Chunk, codec: Codec) -> Iterator[Op]:
    """The cheapest exchange for this chunk; the same on all ranks because it depends on sizes alone."""
    if chunk.numel < TINY:
        return plain(chunk)
    if isinstance(codec, Masked) and codec.level.select == "sharedk":
        return shared(chunk, codec)
    if gathers(codec, chunk.numel, chunk.world_size):
        return gather(chunk, codec)
    return shard(chunk, codec)


def gathers(codec: Codec, numel: int, world_size: int) -> bool:
    """For two ranks both exchanges send the same bytes, and a gather rounds once; small frames save a round trip."""
    return world_size <= 2 or codec.size_of(numel) <= SMALL_FRAME


def sharded(codec: Codec, numel: int, world_size: int) -> bool:
    """Whether the exchange of a chunk of this size reads and writes the residuals of shards' owners."""
    return numel >= TINY and (codec.level.select == "sharedk" or not gathers(codec, numel, world_size))


def phases(level: Level) -> int:
    """The most operations in a row that this level's exchanges take."""
    if level.select == "sharedk":
        return 3
    return 4 if level.lossless or level.select == "lowrank" else 2
