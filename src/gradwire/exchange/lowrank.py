"""Low-rank exchange: the two sums of a low-rank approximation (see compress/lowrank.py for the mathematics).

The buckets of a step are summed in groups: one sum of all P of the group, one of all its Q. Tensors that are not
factorised travel with P. Both sums use direct transfers, one latency each, or two for large factors
(exchange/factor_sum.py), and add in rank order, so every rank gets the same bytes. Groups follow each other on the
lanes without waiting for each other: a step waits for the latencies of its last group, not for those of every bucket.

What a rank keeps is what its own factors did not carry: M - P Q^T with its own Q, not with the mean. Both conserve the
mean over ranks, which alone counts. But with the mean's Q every difference between ranks would stay, and grow for ever;
rounded factors would drown in it.

    in    chunks (whole buckets) with their layouts, in the order of backward
    out   for each chunk an exchange without operations, which computes its P; for each group the exchange of its sums
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from gradwire.compress.base import Encoded
from gradwire.compress.lowrank import FactorLayout, LowRank, put_spans, spans_of
from gradwire.exchange.buffer_pool import BufferLease
from gradwire.exchange.chunk import Chunk
from gradwire.exchange.factor_sum import FactorSum, MeanFactors
from gradwire.transport.lanes.base import Op
from gradwire.types import Bucket

# A group is sent when its factors have this many bytes. Smaller messages fit into TCP's initial window: they cost
# latency and processor time, and several sent together cost the latency of one. Larger groups would lose the overlap
# with backward: in virtual time (4 and 8 hosts, 20 to 300 Mbit/s, 0.2 to 100 ms, buckets of 1 to 25 MB) a step with all
# factors in one group waits up to 2.5 times as long. Of 0, 64, 128, 192 and 256 KiB this one was chosen: compared with
# a group per bucket (0) it is at most 8 % slower, and 3 % faster on average.
FUSED_BYTES: Final = 64 * 1024


def ends_group(bucket: Bucket, nbytes: int) -> bool:
    """Whether a group with factors of `nbytes` is sent after this bucket, which is its last. The first bucket of a step
    is sent alone: it opens TCP's windows while backward continues."""
    return bucket.index == 0 or bucket.is_last or nbytes >= FUSED_BYTES


@dataclass(slots=True, eq=False)
class GroupPart:
    """One bucket of a group; `left` has its P and its rounded spans, `whole` its uncompressed spans."""

    chunk: Chunk
    layout: FactorLayout
    left: Tensor
    whole: Tensor


@dataclass(slots=True, eq=False)
class SummedPart:
    """A part whose first sum is finite: the bases of its matrices, the means of its spans, its own Q, and what the mean
    of the rounded spans lacks of this rank's; None: nothing."""

    chunk: Chunk
    layout: FactorLayout
    bases: list[Tensor]
    rounded: Tensor
    whole: Tensor
    right: Tensor
    lost: Tensor | None


class FactorGroup:
    """The buckets of one rank whose factors are summed together."""

    def __init__(self, factors: LowRank, world_size: int, lease: BufferLease) -> None:
        self._factors, self._world_size, self._lease = factors, world_size, lease
        self._parts: list[GroupPart] = []

    @property
    def nbytes(self) -> int:
        return sum(self._factors.nbytes(part.layout) for part in self._parts)

    def add(self, chunk: Chunk, layout: FactorLayout) -> Iterator[Op]:
        """Add a bucket. The result must run to its end before `exchange` begins."""
        part = GroupPart(chunk, layout, chunk.gradient, chunk.gradient)
        self._parts.append(part)
        return self._multiply(part)

    def _multiply(self, part: GroupPart) -> Iterator[Op]:
        """1. add the residual, in the gradient's own memory, 2. P of each matrix."""
        part.chunk.gradient.add_(part.chunk.residual)  # 1
        part.left = self._factors.left(part.chunk.gradient, part.layout)  # 2
        part.whole = spans_of(part.chunk.gradient, part.layout.whole)
        yield from ()

    def exchange(self) -> Iterator[Op]:
        """3. sum P and all spans, 4. orthonormalise and sum Q, 5. restore, 6. keep what the factors do not carry.

        A NaN or infinity in a bucket makes its result NaN; residual and warm start stay as they were. The same holds
        where the product of the factors could exceed float32: P's columns have length 1, so no sum of `rank` terms
        exceeds `rank` times the largest element of Q.
        """
        sums = FactorSum(self._factors.level.values, self._parts[0].chunk.rank, self._world_size)
        left = torch.cat([part.left for part in self._parts])
        first = yield from sums.mean(left, torch.cat([part.whole for part in self._parts]), self._lease)  # 3
        parts = self._finite(first)
        right = torch.cat([left[:0], *(part.right for part in parts)])
        second = yield from sums.mean(right, right[:0], self._lease)  # 4
        sizes = [part.right.numel() for part in parts]
        own = right if second.lost is None else right - second.lost
        for part, mean, sent in zip(parts, second.factors.split(sizes), own.split(sizes), strict=True):
            self._restore(part, mean, sent)

    def _finite(self, first: MeanFactors) -> list[SummedPart]:
        """The parts whose means are finite; the results of the others become NaN."""
        found = []
        sizes = [part.left.numel() for part in self._parts]
        lefts = first.factors.split(sizes)
        losses = [None] * len(sizes) if first.lost is None else first.lost.split(sizes)
        wholes = first.whole.split([part.whole.numel() for part in self._parts])
        for part, left, lost, whole in zip(self._parts, lefts, losses, wholes, strict=True):
            if not (left.isfinite().all() and whole.isfinite().all()):
                set_nan(part.chunk)
                continue
            layout = part.layout
            begin = left.numel() - layout.rounded_numel
            bases = self._factors.bases(layout, left[:begin])
            right = self._factors.right(part.chunk.gradient, layout, bases)
            kept = None if lost is None else lost[begin:]
            found.append(SummedPart(part.chunk, layout, bases, left[begin:], whole, right, kept))
        return found

    def _restore(self, part: SummedPart, mean: Tensor, sent: Tensor) -> None:
        """`sent` is this rank's own Q, as it counts in the mean."""
        chunk, layout, factors = part.chunk, part.layout, self._factors
        if not (mean * factors.level.rank).isfinite().all():
            set_nan(chunk)
            return
        with chunk.opened(chunk.residual, chunk.span.start) as residual:
            residual.copy_(chunk.gradient)
            factors.subtract(layout, part.bases, sent, residual)  # 6
            put_spans(part.lost, layout.rounded, residual, layout.block)
            put_spans(None, layout.whole, residual)
        factors.restore(layout, part.bases, mean, chunk.gradient)  # 5
        put_spans(part.rounded, layout.rounded, chunk.gradient, layout.block)
        put_spans(part.whole, layout.whole, chunk.gradient)
        chunk.report(chunk.span.start, Encoded(layout.left_numel + layout.right_numel + layout.whole_numel))


def set_nan(chunk: Chunk) -> None:
    chunk.report(chunk.span.start, Encoded(0, nonfinite=1))
    chunk.gradient.fill_(float("nan"))
