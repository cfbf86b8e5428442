"""Partition: cuts each bucket into pieces and assigns every piece to one of the plan's trees.

In: a plan and element counts, bucket after bucket. Out: Pieces in the order in which they start, the same on every
rank. Each tree gets as much of a bucket as it lacks of its share of the step so far. A tree that lacks less than one
piece waits for a later bucket, so shares hold for many small buckets as well as for one large one. Well compressed
buckets use few trees and few pieces, because each frame costs every hop a wake-up, however short it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gradwire.compress.values import ALIGN
from gradwire.types import Plan

# Number of pieces of a whole gradient, so that hops overlap, and the limits of a piece's size: below, headers and round
# trips dominate; above, hops wait for each other.
PIECES: Final = 128
LEAST_CHUNK: Final = 64 << 10
MOST_CHUNK: Final = 1 << 20
# A tree that lacks fewer elements waits for a later bucket: 16 KiB of fp32, a dozen packets. Second: in wire bytes.
LEAST_PIECE: Final = 4096
LEAST_WIRE: Final = 4096


@dataclass(frozen=True, slots=True)
class Piece:
    """Elements [start, start + numel) of a bucket, summed over tree number `tree`; `index` counts within the bucket."""

    index: int
    start: int
    numel: int
    tree: int


def chunk_for(nbytes: int, ratio: float = 1.0) -> int:
    """Bytes of dense gradient per piece for a gradient of this size, of which `ratio` goes over the wire."""
    return max(min(MOST_CHUNK, max(LEAST_CHUNK, nbytes // PIECES)), round(LEAST_WIRE / ratio))


class Partitioner:
    """Partitions the buckets of one step, in order."""

    def __init__(self, plan: Plan) -> None:
        self._shares = [tree.share for tree in plan.trees]
        self._most = max(ALIGN, (plan.chunk or MOST_CHUNK) // 4 // ALIGN * ALIGN)
        self._assigned = [0] * len(self._shares)

    def partition(self, numel: int, ratio: float = 1.0) -> list[Piece]:
        """Pieces of the next bucket; `ratio` of its bytes go over the wire."""
        least = max(LEAST_PIECE, round(LEAST_WIRE / 4 / ratio))
        spans = [(tree, length) for tree, length in enumerate(self._lengths(numel, least)) if length]
        cuts: list[tuple[float, int, int, int]] = []
        start = 0
        for tree, length in spans:
            count = -(-length // max(self._most, least))
            each = -(-length // (count * ALIGN)) * ALIGN
            places = range(0, length, each)
            cuts += [((k + 0.5) / len(places), start + at, min(each, length - at), tree) for k, at in enumerate(places)]
            start += length
        # Interleave the trees, so that all start at once and progress at the same pace.
        return [Piece(index, at, size, tree) for index, (_, at, size, tree) in enumerate(sorted(cuts))]

    def _lengths(self, numel: int, least: int) -> list[int]:
        """Elements for each tree, in whole blocks: divided among trees that lack `least` or more, by what they lack.

        Only the last span may have an odd length, so that every span begins at a block.
        """
        total = sum(self._assigned) + numel
        behind = [share * total - assigned for share, assigned in zip(self._shares, self._assigned, strict=True)]
        order = sorted(range(len(behind)), key=lambda tree: (-behind[tree], tree))
        chosen = [tree for tree in order if behind[tree] >= least] or order[:1]
        lengths, left, wanted = [0] * len(behind), numel // ALIGN, sum(behind[tree] for tree in chosen)
        for tree in reversed(chosen):
            blocks = round(left * behind[tree] / wanted) if wanted > 0 and tree != order[0] else left
            lengths[tree] = blocks * ALIGN
            left, wanted = left - blocks, wanted - behind[tree]
        last = max((tree for tree, length in enumerate(lengths) if length), default=order[0])
        lengths[last] += numel % ALIGN
        for tree, length in enumerate(lengths):
            self._assigned[tree] += length
        return lengths
