"""Codecs: the codec or the factorisation of every level that a session has used, and what they keep between steps."""

from __future__ import annotations

from torch import Tensor

from gradwire.compress.base import Codec
from gradwire.compress.build import build_codec
from gradwire.compress.lowrank import LowRank
from gradwire.compress.prune import Orders
from gradwire.level import Level

# The warm starts of low-rank levels, by level and parameter.
Factors = dict[str, dict[str, Tensor]]


class CodecCache:
    """Made when a level is first used. `zero_pruned`: pruned weights become zero."""

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
        """The bucket is laid out or cut anew: orders of its elements hold no more."""
        for place in list(self._orders):  # other buckets' exchanges may be adding theirs
            if place[0] == bucket:
                del self._orders[place]

    def factors(self) -> Factors:
        return {str(level): lowrank.state_dict() for level, lowrank in self._lowranks.items()}

    def load_factors(self, state: Factors) -> None:
        for text, factors in state.items():
            self.lowrank(Level.parse(text)).load_state_dict(factors)
