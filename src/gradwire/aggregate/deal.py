"""Deal: a bucket is cut into pieces, and each piece goes to one of the plan's trees.

In: a plan and element counts, bucket after bucket. Out: Pieces, the same on every rank. The next piece goes to the tree
that is furthest behind its share of what was dealt so far in the step, so shares hold over many small buckets as well
as over one large one, and all trees start at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gradwire.flow import Plan

# Pieces begin at multiples of the largest quantisation block.
ALIGN: Final = 256
# Pieces in which a whole gradient travels, so that hops overlap, and the sizes between which that stays reasonable:
# below, a piece is all headers and round trips; above, hops wait for each other.
PIECES: Final = 128
LEAST_CHUNK: Final = 128 << 10
MOST_CHUNK: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Piece:
    """Elements [start, start + numel) of a bucket, summed over tree number `tree`; `index` counts within the bucket."""

    index: int
    start: int
    numel: int
    tree: int


def chunk_for(nbytes: int) -> int:
    """Bytes of dense gradient per piece for a gradient of this size."""
    return min(MOST_CHUNK, max(LEAST_CHUNK, nbytes // PIECES))


class Dealer:
    """Deals one step's buckets in order."""

    def __init__(self, plan: Plan) -> None:
        self._shares = [tree.share for tree in plan.trees]
        self._length = max(ALIGN, (plan.chunk or MOST_CHUNK) // 4 // ALIGN * ALIGN)
        self._dealt = [0] * len(self._shares)
        self._total = 0

    def deal(self, numel: int) -> list[Piece]:
        count = max(1, round(numel / self._length))
        length = -(-numel // (count * ALIGN)) * ALIGN
        return [
            Piece(index, start, min(length, numel - start), self._next(min(length, numel - start)))
            for index, start in enumerate(range(0, numel, length))
        ]

    def _next(self, numel: int) -> int:
        self._total += numel
        behind = [share * self._total - dealt for share, dealt in zip(self._shares, self._dealt, strict=True)]
        tree = max(range(len(behind)), key=lambda place: (behind[place], -place))
        self._dealt[tree] += numel
        return tree
