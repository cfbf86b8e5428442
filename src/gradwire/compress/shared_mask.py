"""Shared-mask codec: all ranks send the same elements, so that values add up without indices.

`randk` draws the indices from a seed (none are sent). `sharedk` takes them from one rank, the leader, which sends the
indices of its largest elements first (ScaleCom's cyclic leader, one per shard so that the load is even). The frames of
values are the same for both, add up element by element, and the sum is not sparsified again.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.compress import kernels
from gradwire.compress.base import ChunkSpan, Encoded
from gradwire.compress.frame import HEADER, aligned, counts, open_frame, seal
from gradwire.compress.topk import index_bound, write_values
from gradwire.compress.values import CODECS, Ranges, frame_energies, values_within
from gradwire.errors import IntegrityError
from gradwire.level import Level
from gradwire.types import Energies


@dataclass(frozen=True, slots=True)
class SharedMaskCodec:
    """Values at given indices. For `randk` the indices follow from the span; for `sharedk` they are passed in."""

    level: Level

    def wanted(self, numel: int) -> int:
        return min(numel, max(1, round(self.level.ratio * numel)))

    def size_of(self, numel: int) -> int:
        return aligned(HEADER + CODECS[self.level.values].nbytes(self.wanted(numel)))

    def mask_size(self, numel: int) -> int:
        """Bytes of the frame in which a leader sends its indices."""
        return aligned(HEADER + index_bound(self.wanted(numel), numel))

    def random_mask(self, span: ChunkSpan, device: torch.device) -> Tensor:
        """The indices of this step's random-k, equal on all ranks: equal blocks, one seeded random index in each."""
        wanted, numel = self.wanted(span.numel), span.numel
        generator = torch.Generator().manual_seed(span.seed(rank=0))
        edges = torch.linspace(0, numel, wanted + 1, dtype=torch.float64)
        lower, upper = edges[:-1].ceil(), edges[1:].ceil()
        draw = torch.rand(wanted, generator=generator, dtype=torch.float64)
        places = lower + (draw * (upper - lower)).floor()
        return places.to(torch.int32).to(device)

    def lead(self, gradient: Tensor, residual: Tensor | None, frame: Tensor) -> Tensor:
        """Choose the indices from this rank's gradient + residual, write them to `frame`, return them."""
        numel = gradient.numel()
        wanted = self.wanted(numel)
        indices = torch.empty(wanted, dtype=torch.int32, device=gradient.device)
        scratch = torch.empty(wanted, dtype=torch.float32, device=gradient.device)
        waiting = gradient if residual is None else gradient + residual
        threshold = kernels.threshold(waiting, None, wanted)
        count = kernels.select(waiting, None, threshold, indices, scratch).count
        body = kernels.pack_indices(indices, count, numel, frame[HEADER:])
        seal(frame, self.level, numel, count, body, body)
        return indices[:count]

    def follow(self, frame: Tensor, numel: int) -> Tensor:
        """Read a leader's indices."""
        header = open_frame(frame, self.level, numel)
        if header.count > self.wanted(numel):
            raise IntegrityError(f"frame announces {header.count} indices, at most {self.wanted(numel)} are allowed")
        indices = torch.empty(header.count, dtype=torch.int32, device=frame.device)
        kernels.unpack_indices(frame[HEADER : HEADER + header.body], header.count, numel, indices)
        return indices

    def encode_at(
        self, gradient: Tensor, residual: Tensor | None, mask: Tensor, frame: Tensor, seed: int | None
    ) -> Encoded:
        """Write gradient + residual at the mask's indices; everything else stays in the residual."""
        values = torch.empty(mask.numel(), dtype=torch.float32, device=gradient.device)
        nonfinite = kernels.gather(gradient, residual, mask, values, mask.numel())
        body = CODECS[self.level.values].nbytes(mask.numel())
        write_values(self.level, values, mask, residual, frame[HEADER : HEADER + body], seed, nonfinite)
        seal(frame, self.level, gradient.numel(), mask.numel(), body)
        return Encoded(mask.numel(), nonfinite, mask)

    def decode_at(
        self, frame: Tensor, out: Tensor, mask: Tensor, weight: float = 1.0, add: bool = False, whole: bool = True
    ) -> None:
        header = open_frame(frame, self.level, out.numel(), whole)
        if header.count != mask.numel() or header.body != CODECS[self.level.values].nbytes(header.count):
            raise IntegrityError(f"frame holds {header.count} values for a mask of {mask.numel()} indices")
        values = torch.empty(header.count, dtype=torch.float32, device=out.device)
        CODECS[self.level.values].decode(frame[HEADER : HEADER + header.body], values, 1.0, add=False)
        if not add:
            out.zero_()
        kernels.scatter_add(mask, values, header.count, out, weight=weight)

    def encode(
        self, gradient: Tensor, residual: Tensor | None, frame: Tensor, span: ChunkSpan, seed: int | None
    ) -> Encoded:
        return self.encode_at(gradient, residual, self.random_mask(span, gradient.device), frame, seed)

    def decode(
        self, frame: Tensor, out: Tensor, span: ChunkSpan, weight: float = 1.0, add: bool = False, whole: bool = True
    ) -> None:
        self.decode_at(frame, out, self.random_mask(span, out.device), weight, add, whole)

    def critical(self, frame: Tensor) -> int:
        return HEADER + CODECS[self.level.values].head(counts(frame)[0])

    def energies(self, frame: Tensor) -> Energies | None:
        return frame_energies(self.level, frame, counts(frame)[0], HEADER)

    def places(self, frame: Tensor, span: ChunkSpan, missing: Ranges) -> Tensor:
        mask = self.random_mask(span, frame.device)
        return mask[values_within(CODECS[self.level.values], mask.numel(), missing, HEADER)].long()
