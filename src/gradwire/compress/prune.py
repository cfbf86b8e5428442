"""Prune: coordinates whose weight is small are left out, at no cost in index bytes.

Weights are identical on all ranks, so "the smallest |w| of this stretch" is a mask every rank computes for itself.

`hold` (default) keeps those coordinates' gradient in the residual. Every PERIOD steps one of ROTATION groups of them
is let through in turn, so that none waits longer than PERIOD x ROTATION steps; after a full turn the mask is refreshed.
`zero` really prunes: weights and gradients under the mask become zero, nothing waits and nothing is rotated.
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

PERIOD: Final = 8
ROTATION: Final = 4


# (bucket, start) -> (turn, places in order of growing |w|): sorting costs, so one sort serves a full turn, and all
# levels that prune. Whoever lays a bucket out or cuts it anew forgets its entries.
Orders = dict[tuple[int, int], tuple[int, Tensor]]


class Pruned:
    """Another codec, applied to the coordinates that are not held back."""

    def __init__(self, level: Level, inner: Codec, zero: bool = False, orders: Orders | None = None) -> None:
        self.level = level
        self._inner = inner
        self._zero = zero
        self._orders = {} if orders is None else orders

    def size_of(self, numel: int) -> int:
        small = int(self.level.prune * numel)
        # The turn that lets the most coordinates through decides the frame's size.
        return self._inner.size_of(numel - small + -(-small // ROTATION))

    def encode(
        self, gradient: Tensor, residual: Tensor | None, frame: Tensor, stretch: ChunkSpan, seed: int | None
    ) -> Encoded:
        """1. accumulate, 2. compact what may travel, 3. encode it, 4. put back what the inner codec left.

        A NaN or infinite gradient travels as it is and its place keeps the residual it had.
        """
        waiting = torch.zeros_like(gradient) if residual is None else residual
        nonfinite = kernels.accumulate(gradient, waiting)  # 1
        keep = self.kept_places(stretch)
        left, fresh = waiting[keep], gradient[keep]  # 2
        wild = torch.where(fresh.isfinite(), 0.0, fresh)  # all the rest has been accumulated
        if nonfinite:
            wild[:1] = torch.nan  # the place may be held back, but every rank must see that the step is spoilt
        done = self._inner.encode(wild, left, frame, self._compacted(stretch, keep), seed)  # 3
        waiting[keep] = left  # 4
        if self._zero:
            self._clear(waiting, stretch)
        places = None if done.places is None else keep[done.places.long()]
        return Encoded(done.sent, nonfinite, places)

    def decode(
        self, frame: Tensor, out: Tensor, stretch: ChunkSpan, weight: float = 1.0, add: bool = False, whole: bool = True
    ) -> None:
        keep = self.kept_places(stretch)
        compact = torch.empty(keep.numel(), dtype=torch.float32, device=out.device)
        self._inner.decode(frame, compact, self._compacted(stretch, keep), weight, whole=whole)
        if not add:
            out.zero_()
        out.index_add_(0, keep, compact)

    def critical(self, frame: Tensor) -> int:
        return self._inner.critical(frame)

    def places(self, frame: Tensor, stretch: ChunkSpan, missing: Ranges) -> Tensor:
        keep = self.kept_places(stretch)
        return keep[self._inner.places(frame, self._compacted(stretch, keep), missing)]

    def kept_places(self, stretch: ChunkSpan) -> Tensor:
        """Places that travel at this step, ascending."""
        order = self._order(stretch)
        small = int(self.level.prune * stretch.numel)
        group = (stretch.step // PERIOD) % ROTATION
        travels = torch.ones(stretch.numel, dtype=torch.bool, device=order.device)
        travels[order[:small]] = False
        if not self._zero:
            travels[order[:small][group::ROTATION]] = True
        return travels.nonzero().squeeze(1)

    def _clear(self, waiting: Tensor, stretch: ChunkSpan) -> None:
        """Really prune: no gradient waits under the mask, and the weights there are zero."""
        places = self._order(stretch)[: int(self.level.prune * stretch.numel)]
        waiting[places] = 0.0
        if stretch.weights is not None:
            stretch.weights.zero(places + stretch.start)

    def _order(self, stretch: ChunkSpan) -> Tensor:
        if stretch.weights is None:
            raise IntegrityError("pruning needs the weights under the stretch")
        turn = stretch.step // (PERIOD * ROTATION)
        key = (stretch.bucket, stretch.start)
        known = self._orders.get(key)
        if known is None or known[0] != turn or known[1].numel() != stretch.numel:
            known = (turn, torch.argsort(stretch.weights.read(stretch.start, stretch.numel).abs(), stable=True))
            self._orders[key] = known
        return known[1]

    @staticmethod
    def _compacted(stretch: ChunkSpan, keep: Tensor) -> ChunkSpan:
        return ChunkSpan(stretch.step, stretch.bucket, stretch.start, keep.numel())
