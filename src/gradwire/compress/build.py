"""Builds the codec of a level, and refuses chains of stages that cannot work."""

from __future__ import annotations

from dataclasses import replace

from gradwire.compress.base import Codec
from gradwire.compress.dense import DenseCodec
from gradwire.compress.lossless import Lossless
from gradwire.compress.prune import Orders, Pruned
from gradwire.compress.shared_mask import SharedMaskCodec
from gradwire.compress.topk import TopK
from gradwire.errors import ConfigError
from gradwire.level import Level


def build_codec(level: Level, zero_pruned: bool = False, orders: Orders | None = None) -> Codec:
    """The codec of a level that has frames (every level but low rank). Codecs of several levels may share `orders`."""
    check_chain(level)
    inner = _selecting(replace(level, prune=0.0, lossless=False))
    if level.prune:
        inner = Pruned(replace(level, lossless=False), inner, zero_pruned, orders)
    return Lossless(level, inner) if level.lossless else inner


def check_chain(level: Level, setting: str = "level") -> None:
    """ConfigError for a chain that cannot work, before anything is sent."""
    if level.select == "lowrank" and (level.values == "int2" or level.prune or level.lossless):
        raise ConfigError(
            f"{setting}: lowrank can be combined with fp16, bf16, int8 or int4 only; "
            f"write lowrank:{level.rank}+int8 instead of {level}"
        )
    if level.select == "sharedk" and (level.prune or level.lossless):
        raise ConfigError(
            f"{setting}: sharedk can be combined with fp16, bf16, int8, int4 or int2 only; "
            f"remove prune and zstd from {level}"
        )


def _selecting(level: Level) -> Codec:
    if level.select in ("topk", "exactk"):
        return TopK(level)
    if level.select in ("randk", "sharedk"):
        return SharedMaskCodec(level)
    if level.select == "all":
        return DenseCodec(level)
    raise ConfigError(f"level: {level} is sent as low-rank factors and has no frame codec")
