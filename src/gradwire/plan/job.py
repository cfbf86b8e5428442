"""Job: what has to be summed, as the cost of moving it depends on it.

In: settings and the level the sizes follow from. Out: bytes on the wire for a sum over m members.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from gradwire.errors import ConfigError

# Below this a chunk is all headers and round trips; above, hops wait for each other. 1 MiB is 40 ms at 200 Mbit/s.
DEFAULT_CHUNK = 1 << 20
# One core sums fp32 at about this many received bytes a second (r += g, PLATFORM's floor: 4.2 ms for 44.7 MB).
DEFAULT_AGGREGATION = 10e9


@dataclass(frozen=True, slots=True)
class ReductionJob:
    """`nbytes` of dense gradient per member, moved in pieces of `chunk`.

    `ratio`: wire bytes per gradient byte of one member's contribution. `growth`: how far sums of compressed payloads
    grow, from 0 (summable: a sum is as large as a part) to 1 (unions never overlap: m parts are m times as large).
    `aggregation`: bytes a member sums per second. `sites` says which members are near each other (member -> name).
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
                raise ConfigError(f"{name}: must be above 0, not {getattr(self, name)}")
        if not 0 <= self.growth <= 1:
            raise ConfigError(f"growth: must lie in 0..1 (0 for summable payloads), not {self.growth}")

    def wire(self, members: int) -> float:
        """Wire bytes per gradient byte of a sum over so many members; never more than dense."""
        return min(max(1.0, self.ratio), self.ratio * (1.0 + self.growth * (members - 1)))

    def chunks(self, share: float) -> int:
        """Pieces in which a tree's share travels."""
        return max(1, math.ceil(share * self.nbytes / self.chunk - 1e-9))
