"""Job ranks: all ranks of a job whose gradients are exchanged in several groups, one for each shard of the model.

The shards of a site share its uplink, so all of them decide together (runtime/adaptive_governor.py). Events and
recordings number ranks as the job does and not as one of its groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JobRanks:
    """This rank's number in the job, all of the job's ranks as torch's default group numbers them, and the job's
    numbers of the ranks with which this one exchanges gradients, in the order of their group."""

    rank: int
    ranks: tuple[int, ...]
    exchanging: tuple[int, ...]

    @property
    def size(self) -> int:
        return len(self.ranks)

    @classmethod
    def of_group(cls, rank: int, size: int) -> JobRanks:
        """A job with one group."""
        return cls(rank, tuple(range(size)), tuple(range(size)))

    @classmethod
    def of_shards(cls, own: int, ranks: Sequence[int], exchanging: Sequence[int]) -> JobRanks:
        """`own`, `ranks` and `exchanging` as torch's default group numbers them."""
        ordered = tuple(sorted(ranks))
        return cls(ordered.index(own), ordered, tuple(ordered.index(rank) for rank in exchanging))
