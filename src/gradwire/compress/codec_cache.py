"""Codec cache: the codec or the low-rank factorisation of every level used so far, with their state between steps."""

from __future__ import annotations

from torch import Tensor

from gradwire.compress.base import Codec
from gradwire.compress.build import build_codec
from gradwire.compress.lowrank import LowRank
from gradwire.compress.prune import Orders
from gradwire.level import Level

# The warm-start factors of low-rank levels, by level and parameter.
Factors = dict[str, dict[str, Tensor]]


class CodecCache:
    """Builds a codec when its level is first used. `zero_pruned`: pruned weights are set to zero."""

    def __init__(self, zero_pruned: bool = False) -> None:
        self._zero_pruned = zero_pruned
        self._codecs: dict[Level, Codec] = {}
        self._lowranks: dict[Level, LowRank] = {}
        self._orders: Orders = {}

    def codec(self, level: Level) -> Codec:
        if level not in self._codecs:
            self._codecs[level] = build_codec(level, self._zero_pruned, self._orders)
        return self._codecs[level]

    def lowrank(self, level: Level) -> LowRank:
        return self._lowranks.setdefault(level, LowRank(level))

    def forget(self, bucket: int) -> None:
        """Drop the cached sort orders of a bucket whose layout or chunks changed."""
        for key in list(self._orders):  # exchanges of other buckets may add theirs meanwhile
            if key[0] == bucket:
                del self._orders[key]

    def factors(self) -> Factors:
        return {str(level): lowrank.state_dict() for level, lowrank in self._lowranks.items()}

    def load_factors(self, state: Factors) -> None:
        for text, factors in state.items():
            self.lowrank(Level.parse(text)).load_state_dict(factors)
