"""Low-rank exchange: the two sums of a low-rank approximation (see compress/lowrank.py for the mathematics).

Both are small and use direct transfers: one latency each, or two for a large factor (exchange/dense_sum.py). Buckets
follow each other on the lanes without waiting for each other, so a step waits only for the last one's latencies.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradwire.compress.base import Encoded
from gradwire.compress.lowrank import FactorLayout, LowRank
from gradwire.exchange.chunk import Chunk
from gradwire.exchange.dense_sum import summed
from gradwire.transport.lanes.base import Op


def lowrank(chunk: Chunk, factors: LowRank, layout: FactorLayout) -> Iterator[Op]:
    """1. add the residual, 2. sum P, 3. orthonormalise and sum Q, 4. restore, 5. keep what the factors do not carry.

    A NaN or infinity in the gradient makes the result NaN; residual and warm start stay as they were. The same holds
    where the product of the factors could exceed float32: P's columns have length 1, so no sum of `rank` terms exceeds
    `rank` times the largest element of Q.
    """
    weight = 1.0 / chunk.world_size
    waiting = chunk.gradient + chunk.residual  # 1
    left = factors.left(waiting, layout).mul_(weight)
    yield from summed(left, chunk.world_size, chunk.lease)  # 2
    if not left.isfinite().all():
        return set_nan(chunk)
    right = factors.right(waiting, layout, left).mul_(weight)
    if layout.right_numel:
        yield from summed(right, chunk.world_size, chunk.lease)  # 3
    if not (right * factors.level.rank).isfinite().all():
        return set_nan(chunk)
    factors.restore(layout, left, right, chunk.gradient)  # 4
    chunk.residual.copy_(waiting).sub_(chunk.gradient)  # 5
    for start, numel in layout.whole:
        chunk.residual[start : start + numel].zero_()
    chunk.report(chunk.span.start, Encoded(layout.left_numel + layout.right_numel))


def set_nan(chunk: Chunk) -> None:
    chunk.report(chunk.span.start, Encoded(0, nonfinite=1))
    chunk.gradient.fill_(float("nan"))
