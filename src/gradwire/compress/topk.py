"""Top-k codec: the largest elements are sent with their indices; the rest stays in the residual.

`topk` takes little more than one fused pass (add residual, compare, pack, update residual). On the CPU small shares are
exact. Large shares, and all shares on other devices, use a sampled threshold that selects the requested share within
10 %. `exactk` is exact everywhere and may select zeros. A frame holds the count, Rice-coded or bitmap indices, then the
values.

The frame's size is fixed by the share, but the number of elements above a threshold is not: a frame has space for 5 %
more than requested, and what does not fit stays in the residual.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gradwire.compress import kernels
from gradwire.compress.base import ChunkSpan, Encoded
from gradwire.compress.frame import HEADER, aligned, counts, kinds, open_frame, seal
from gradwire.compress.kernels.base import SparseForm
from gradwire.compress.values import CODECS, Ranges, frame_energies, unreadable, values_within
from gradwire.errors import IntegrityError
from gradwire.level import Level
from gradwire.types import Energies

# Space for a threshold that selects more than requested: 5 % costs little, and the sample is rarely further off.
SLACK = 1.05
# Up to this share exact selection is also the faster one: at 300,000 elements 0.20 ms instead of 0.32 for 1 %, but 0.6
# instead of 0.42 for 10 %.
EXACT_UP_TO = 0.05


@dataclass(frozen=True, slots=True)
class TopK:
    """The largest `ratio` of the elements by magnitude."""

    level: Level

    def wanted(self, numel: int) -> int:
        return min(numel, max(1, round(self.level.ratio * numel)))

    def capacity(self, numel: int) -> int:
        slack = 1.0 if self.level.select == "exactk" else SLACK
        return min(numel, int(self.wanted(numel) * slack) + 1)

    def size_of(self, numel: int) -> int:
        most = self.capacity(numel)
        return aligned(HEADER + aligned(index_bound(most, numel)) + self._values(most))

    def form(self, numel: int) -> SparseForm:
        """As `encode` does it on the CPU, for kernels that write whole frames on a device."""
        selecting: Literal["largest", "exact", "sampled"] = "exact" if self.level.select == "exactk" else "largest"
        if selecting == "largest" and self.level.ratio > EXACT_UP_TO:
            selecting = "sampled"
        wanted, most = self.wanted(numel), self.capacity(numel)
        return SparseForm(wanted, most, selecting, self.level.values, kinds(self.level), HEADER)

    def encode(
        self, gradient: Tensor, residual: Tensor | None, frame: Tensor, span: ChunkSpan, seed: int | None
    ) -> Encoded:
        """1. select what is sent, 2. pack the indices, 3. write the values, rounding errors go to the residual."""
        numel = gradient.numel()
        indices = torch.empty(self.capacity(numel), dtype=torch.int32, device=gradient.device)
        values = torch.empty(self.capacity(numel), dtype=torch.float32, device=gradient.device)
        picked = self._select(gradient, residual, indices, values)  # 1
        count = picked.count
        packed = kernels.pack_indices(indices, count, numel, frame[HEADER:])  # 2
        used = aligned(packed)
        frame[HEADER + packed : HEADER + used].zero_()  # a frame is a function of what it carries
        body = used + self._values(count)
        data = frame[HEADER + used : HEADER + body]
        write_values(self.level, values[:count], indices[:count], residual, data, seed, picked.nonfinite)  # 3
        seal(frame, self.level, numel, count, body, packed)
        return Encoded(count, picked.nonfinite, indices[:count])

    def decode(
        self, frame: Tensor, out: Tensor, span: ChunkSpan, weight: float = 1.0, add: bool = False, whole: bool = True
    ) -> None:
        numel = out.numel()
        header = open_frame(frame, self.level, numel, whole)
        cut = aligned(header.index)
        if cut + self._values(header.count) != header.body:
            raise IntegrityError(f"frame body of {header.body} bytes does not fit {header.count} values")
        indices = torch.empty(header.count, dtype=torch.int32, device=out.device)
        kernels.unpack_indices(frame[HEADER : HEADER + header.index], header.count, numel, indices)
        values = torch.empty(header.count, dtype=torch.float32, device=out.device)
        data = frame[HEADER + cut : HEADER + header.body]
        CODECS[self.level.values].decode(data, values, 1.0, add=False)
        if not add:
            out.zero_()
        kernels.scatter_add(indices, values, header.count, out, weight=weight)

    def critical(self, frame: Tensor) -> int:
        count, index = counts(frame)
        return HEADER + aligned(index) + CODECS[self.level.values].head(count)

    def energies(self, frame: Tensor) -> Energies | None:
        count, index = counts(frame)
        return frame_energies(self.level, frame, count, HEADER + aligned(index))

    def places(self, frame: Tensor, span: ChunkSpan, missing: Ranges) -> Tensor:
        count, index = counts(frame)
        indices = torch.empty(count, dtype=torch.int32, device=frame.device)
        kernels.unpack_indices(frame[HEADER : HEADER + index], count, span.numel, indices)
        return indices[values_within(CODECS[self.level.values], count, missing, HEADER + aligned(index))].long()

    def _values(self, count: int) -> int:
        return CODECS[self.level.values].nbytes(count)

    def _select(self, gradient: Tensor, residual: Tensor | None, indices: Tensor, values: Tensor) -> kernels.Selection:
        wanted = self.wanted(gradient.numel())
        if self.level.select == "exactk":
            return kernels.select_exact(gradient, residual, wanted, indices, values)
        if self.level.ratio <= EXACT_UP_TO and gradient.device.type == "cpu":
            return kernels.select_largest(gradient, residual, wanted, indices, values)
        threshold = kernels.threshold(gradient, residual, wanted)
        return kernels.select(gradient, residual, threshold, indices, values)


def index_bound(most: int, numel: int) -> int:
    """Bytes that hold the indices of any set of at most `most` elements.

    The bound of one set grows with its size, with two exceptions: where the Rice parameter changes, at sizes of
    0.481 numel / 2^b, and at the full set, which needs no bytes.
    """
    changes = [int(0.481 * numel / 2**b) + shift for b in range(4) for shift in (-1, 0, 1)]
    sizes = [most, most - 1, *(size for size in changes if 0 < size < most)]
    return max(kernels.packed_bound(max(size, 0), numel) for size in sizes)


def write_values(
    level: Level,
    values: Tensor,
    indices: Tensor,
    residual: Tensor | None,
    out: Tensor,
    seed: int | None,
    nonfinite: int = 0,
) -> None:
    """Encode selected values; rounding errors are added to the residual at their indices.

    Where inputs were NaN or infinite, every rank must see it, even if none of them was selected; so one value becomes
    NaN. Finite values that cannot be read because of them stay in the residual.
    """
    codec = CODECS[level.values]
    sent = values
    if nonfinite and values.isfinite().all():
        sent = values.clone()
        sent[:1] = torch.nan
    if residual is None or (level.values == "fp32" and not nonfinite):
        codec.encode(sent, None, out, seed)
        return
    errors = torch.zeros_like(values)
    codec.encode(sent, errors, out, seed)
    if nonfinite:
        errors += unreadable(codec, values, out)
    kernels.scatter_add(indices, errors, errors.numel(), residual)
