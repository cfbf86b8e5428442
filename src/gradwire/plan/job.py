"""Reduction job: what has to be summed, as far as the cost of a plan depends on it.

In: sizes and the effect of the level on them. Out: bytes on the wire for a sum over m members.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from gradwire.errors import ConfigError

# In smaller chunks headers and round trips dominate; with larger ones hops wait for each other. 40 ms at 200 Mbit/s.
DEFAULT_CHUNK = 1 << 20
# One core sums fp32 at about this many received bytes per second (r += g: 4.2 ms for 44.7 MB).
DEFAULT_AGGREGATION = 10e9


@dataclass(frozen=True, slots=True)
class ReductionJob:
    """`nbytes` of dense gradient per member, sent in pieces of `chunk` bytes.

    `ratio`: wire bytes per gradient byte of one member's contribution. `growth`: how much sums of compressed payloads
    grow, from 0 (summable: a sum is as large as one part) to 1 (nothing overlaps: m parts are m times as large).
    `aggregation`: bytes that a member sums per second. `sites`: member -> name of its site.
    """

    nbytes: int
    chunk: int = DEFAULT_CHUNK
    ratio: float = 1.0
    growth: float = 0.0
    aggregation: float = DEFAULT_AGGREGATION
    sites: Mapping[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("nbytes", "chunk", "ratio", "aggregation"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}: {getattr(self, name)} is not valid; it must be above 0")
        if not 0 <= self.growth <= 1:
            raise ConfigError(f"growth: {self.growth} is not valid; it must be in 0..1 (0 for summable payloads)")

    def wire(self, members: int) -> float:
        """Wire bytes per gradient byte of a sum over so many members; never more than dense."""
        return min(max(1.0, self.ratio), self.ratio * (1.0 + self.growth * (members - 1)))

    def chunks(self, share: float) -> int:
        """Number of pieces of a tree's share."""
        return max(1, math.ceil(share * self.nbytes / self.chunk - 1e-9))
