"""Pruning codec: elements with small weights are not sent, and no indices are needed for that.

Weights are identical on all ranks, so every rank computes the same mask: the smallest |w| of the span.

`hold` (default) keeps the gradient of masked elements in the residual. The masked elements form ROTATION groups; one
group at a time is sent for PERIOD steps, so that none waits longer than PERIOD x ROTATION steps. After a full turn the
mask is computed again. `zero` prunes the model: masked weights and their gradients become zero, and nothing waits.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from gradwire.compress import kernels
from gradwire.compress.base import ChunkSpan, Codec, Encoded
from gradwire.compress.values import Ranges
from gradwire.errors import IntegrityError
from gradwire.level import Level
from gradwire.types import Energies

PERIOD: Final = 8
ROTATION: Final = 4


# (bucket, start) -> (turn, indices in order of growing |w|). One sort is used for a full turn and by all levels that
# prune. A bucket's entries must be dropped when its layout or its chunks change.
Orders = dict[tuple[int, int], tuple[int, Tensor]]


class Pruned:
    """Another codec, applied to the elements that are sent at this step."""

    def __init__(self, level: Level, inner: Codec, zero: bool = False, orders: Orders | None = None) -> None:
        self.level = level
        self._inner = inner
        self._zero = zero
        self._orders = {} if orders is None else orders

    def size_of(self, numel: int) -> int:
        small = int(self.level.prune * numel)
        # The largest group decides the frame's size.
        return self._inner.size_of(numel - small + -(-small // ROTATION))

    def encode(
        self, gradient: Tensor, residual: Tensor | None, frame: Tensor, span: ChunkSpan, seed: int | None
    ) -> Encoded:
        """1. accumulate, 2. compact what is sent at this step, 3. encode it, 4. put back what the inner codec left.

        A NaN or infinite gradient is sent as it is, and its element keeps the residual it had.
        """
        waiting = torch.zeros_like(gradient) if residual is None else residual
        nonfinite = kernels.accumulate(gradient, waiting)  # 1
        keep = self.kept_places(span)
        left, fresh = waiting[keep], gradient[keep]  # 2
        unsummed = torch.where(fresh.isfinite(), 0.0, fresh)  # all finite values are in the residual by now
        if nonfinite:
            unsummed[:1] = torch.nan  # the element may be masked, but every rank must see that the step has a NaN
        done = self._inner.encode(unsummed, left, frame, self._compacted(span, keep), seed)  # 3
        waiting[keep] = left  # 4
        if self._zero:
            self._clear(waiting, span)
        places = None if done.places is None else keep[done.places.long()]
        return Encoded(done.sent, nonfinite, places)

    def decode(
        self, frame: Tensor, out: Tensor, span: ChunkSpan, weight: float = 1.0, add: bool = False, whole: bool = True
    ) -> None:
        keep = self.kept_places(span)
        compact = torch.empty(keep.numel(), dtype=torch.float32, device=out.device)
        self._inner.decode(frame, compact, self._compacted(span, keep), weight, whole=whole)
        if not add:
            out.zero_()
        out.index_add_(0, keep, compact)

    def critical(self, frame: Tensor) -> int:
        return self._inner.critical(frame)

    def energies(self, frame: Tensor) -> Energies | None:
        return self._inner.energies(frame)

    def places(self, frame: Tensor, span: ChunkSpan, missing: Ranges) -> Tensor:
        keep = self.kept_places(span)
        return keep[self._inner.places(frame, self._compacted(span, keep), missing)]

    def kept_places(self, span: ChunkSpan) -> Tensor:
        """Indices that are sent at this step, ascending."""
        order = self._order(span)
        small = int(self.level.prune * span.numel)
        group = (span.step // PERIOD) % ROTATION
        sent = torch.ones(span.numel, dtype=torch.bool, device=order.device)
        sent[order[:small]] = False
        if not self._zero:
            sent[order[:small][group::ROTATION]] = True
        return sent.nonzero().squeeze(1)

    def _clear(self, waiting: Tensor, span: ChunkSpan) -> None:
        """Prune the model: under the mask, residual and weights become zero."""
        places = self._order(span)[: int(self.level.prune * span.numel)]
        waiting[places] = 0.0
        if span.weights is not None:
            span.weights.zero(places + span.start)

    def _order(self, span: ChunkSpan) -> Tensor:
        if span.weights is None:
            raise IntegrityError("pruning needs the weights of the span, and none were passed")
        turn = span.step // (PERIOD * ROTATION)
        key = (span.bucket, span.start)
        known = self._orders.get(key)
        if known is None or known[0] != turn or known[1].numel() != span.numel:
            known = (turn, torch.argsort(span.weights.read(span.start, span.numel).abs(), stable=True))
            self._orders[key] = known
        return known[1]

    @staticmethod
    def _compacted(span: ChunkSpan, keep: Tensor) -> ChunkSpan:
        return ChunkSpan(span.step, span.bucket, span.start, keep.numel())
