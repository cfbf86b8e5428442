"""Low rank: the two sums of a low-rank approximation (see compress/lowrank.py for the mathematics).

Both are small, so they go by direct transfers: one latency each, or two for a large factor (exchange/dense_sum.py).
Buckets pass the lanes one behind the other without waiting for each other, so a step waits for the last one's alone.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradwire.compress.base import Encoded
from gradwire.compress.lowrank import FactorLayout, LowRank
from gradwire.exchange.chunk import Chunk
from gradwire.exchange.dense_sum import summed
from gradwire.transport.lanes.base import Op


def lowrank(chunk: Chunk, factors: LowRank, layout: FactorLayout) -> Iterator[Op]:
    """1. add what waited, 2. sum P, 3. orthonormalise and sum Q, 4. restore, 5. keep what was left out.

    A NaN or infinite gradient spoils the factors, as it would spoil the mean; residual and warm starts are left as they
    were. So it is where the factors' product may exceed float32: P's columns have length 1, so no sum of `rank` terms
    exceeds `rank` times the largest of Q.
    """
    weight = 1.0 / chunk.world_size
    waiting = chunk.gradient + chunk.residual  # 1
    left = factors.left(waiting, layout).mul_(weight)
    yield from summed(left, chunk.world_size, chunk.lease)  # 2
    if not left.isfinite().all():
        return spoilt(chunk)
    right = factors.right(waiting, layout, left).mul_(weight)
    if layout.right_numel:
        yield from summed(right, chunk.world_size, chunk.lease)  # 3
    if not (right * factors.level.rank).isfinite().all():
        return spoilt(chunk)
    factors.restore(layout, left, right, chunk.gradient)  # 4
    chunk.residual.copy_(waiting).sub_(chunk.gradient)  # 5
    for start, numel in layout.whole:
        chunk.residual[start : start + numel].zero_()
    chunk.report(chunk.stretch.start, Encoded(layout.left_numel + layout.right_numel))


def spoilt(chunk: Chunk) -> None:
    chunk.report(chunk.stretch.start, Encoded(0, nonfinite=1))
    chunk.gradient.fill_(float("nan"))
