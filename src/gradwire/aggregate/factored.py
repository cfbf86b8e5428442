"""Factored: the two all-reduces of a low-rank approximation (see compress/lowrank.py for the mathematics)."""

from __future__ import annotations

from collections.abc import Iterator

from gradwire.aggregate.chunk import Chunk
from gradwire.compress.base import Encoded
from gradwire.compress.lowrank import Layout, LowRank
from gradwire.transport.base import AllReduce, Op


def factored(chunk: Chunk, lowrank: LowRank, layout: Layout) -> Iterator[Op]:
    """1. add what waited, 2. sum P, 3. orthonormalise and sum Q, 4. restore, 5. keep what was left out.

    A NaN or infinite gradient spoils the factors, as it would spoil the mean; the residual is left as it was.
    """
    weight = 1.0 / chunk.world_size
    waiting = chunk.gradient + chunk.residual  # 1
    left = lowrank.left(waiting, layout).mul_(weight)
    yield AllReduce(left)  # 2
    if not left.isfinite().all():
        chunk.report(chunk.stretch.start, Encoded(0, nonfinite=1))
        chunk.gradient.fill_(float("nan"))
        return
    right = lowrank.right(waiting, layout, left).mul_(weight)
    yield AllReduce(right)  # 3
    lowrank.restore(layout, left, right, chunk.gradient)  # 4
    chunk.residual.copy_(waiting).sub_(chunk.gradient)  # 5
    for start, numel in layout.whole:
        chunk.residual[start : start + numel].zero_()
    chunk.report(chunk.stretch.start, Encoded(layout.left_numel + layout.right_numel))
