"""Portion: one piece's numbers at one member, in the form in which they travel a tree.

In: gradient and residual of the piece, frames' bodies. Out: bodies for the next hop. Only forms that add without
indices: all elements as fp32, half, int8 or int4 (encoded anew at every hop, the rounding error waiting in that
member's own residual), or the values at places that all members share. What a hop lost returns to its sender's
residual. The root's rounding error is worth `contributors` of a member's, and waits in the root's residual as such.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol
from zlib import crc32

import torch
from torch import Tensor

from gradwire.compress import kernels
from gradwire.compress.base import ChunkSpan
from gradwire.compress.shared_mask import SharedMaskCodec
from gradwire.compress.values import CODECS, INT4_BLOCK, INT8_BLOCK, ValueCodec, spoilt
from gradwire.errors import ConfigError
from gradwire.level import Level, Values

WORKS: Final = "off, fp16, bf16, int8, int4, randk:R and sharedk:R (these two also with +fp16, +bf16, +int8 or +int4)"
# Bytes of values that are lost or arrive together on a loss tolerant hop.
CELL: Final = 1024
_PER_CELL: Final[dict[Values, int]] = {"fp32": 256, "fp16": 512, "bf16": 512, "int8": 1024, "int4": 2048}
_BLOCK: Final[dict[Values, int]] = {"int8": INT8_BLOCK, "int4": INT4_BLOCK}


def check_summable(level: Level, setting: str = "level") -> Level:
    """ConfigError for a level whose payloads do not add up on their way through a tree."""
    if level.select not in ("all", "randk", "sharedk") or level.prune or level.lossless:
        raise ConfigError(f"{setting}: {level} does not add up inside a tree; with a plan these work: {WORKS}")
    return level


def frame_bytes(level: Level, numel: int) -> int:
    """Bytes of all frames together in which `numel` elements go over one edge."""
    count = numel if level.select == "all" else SharedMaskCodec(level).wanted(numel)
    return AccumulatorBody(level.values, count).nbytes


def form_of(level: Level) -> int:
    """A number by which members notice that they use different levels."""
    return crc32(str(level).encode())


@dataclass(frozen=True, slots=True)
class AccumulatorBody:
    """Where things lie in the body of a frame with `count` values: scales first (they must arrive), then values."""

    values: Values
    count: int

    @property
    def nbytes(self) -> int:
        return CODECS[self.values].nbytes(self.count)

    @property
    def scales(self) -> int:
        block = _BLOCK.get(self.values)
        return 4 * -(-self.count // block) if block else 0

    @property
    def cells(self) -> int:
        return -(-(self.nbytes - self.scales) // CELL)

    def cell(self, place: int) -> tuple[int, int]:
        """First and last + 1 element of a cell."""
        each = _PER_CELL[self.values]
        return min(place * each, self.count), min((place + 1) * each, self.count)

    def spread(self, counts: Tensor) -> Tensor:
        """One number per element from one per cell."""
        return counts.float().repeat_interleave(_PER_CELL[self.values])[: self.count]


class Accumulator(Protocol):
    """The numbers of one piece at one member."""

    body: AccumulatorBody

    def begin(self) -> int:
        """Take gradient and residual in; returns how many elements are not finite."""
        ...

    def add(self, body: Tensor) -> None:
        """Add a child's sum."""
        ...

    def pack(self, body: Tensor) -> None:
        """Write the sum so far; what this form rounds away waits in the residual."""
        ...

    def write_mean(self, body: Tensor, counts: float | Tensor) -> None:
        """At the root: write the mean over `counts` contributors (one number, or one per element)."""
        ...

    def restore(self, body: Tensor) -> None:
        """Write the mean over the gradient."""
        ...

    def reclaim(self, body: Tensor, cells: list[int]) -> None:
        """These cells of what was packed never arrived: they wait in the residual."""
        ...


class DenseAccumulator:
    """All elements. The gradient itself is the accumulator."""

    def __init__(self, values: Values, gradient: Tensor, residual: Tensor, seed: int | None) -> None:
        self.body = AccumulatorBody(values, gradient.numel())
        self._codec = CODECS[values]
        self._sum, self._residual, self._seed = gradient, residual, seed

    def begin(self) -> int:
        return 0  # counted when packed: a second pass would only find the same

    def add(self, body: Tensor) -> None:
        self._codec.decode(body, self._sum, 1.0, add=True)

    def pack(self, body: Tensor) -> None:
        self._codec.encode(self._sum, self._residual, body, self._seed)

    def write_mean(self, body: Tensor, counts: float | Tensor) -> None:
        self._sum.div_(counts)
        self._residual.div_(counts)
        self._codec.encode(self._sum, self._residual, body, self._seed)
        self._residual.mul_(counts)

    def restore(self, body: Tensor) -> None:
        self._codec.decode(body, self._sum, 1.0, add=False)

    def reclaim(self, body: Tensor, cells: list[int]) -> None:
        sent = _finite(self._codec, body, self.body.count)
        for start, end in map(self.body.cell, cells):
            self._residual[start:end] += sent[start:end]


class SharedMaskAccumulator:
    """Values at shared places; everything else waits in the residual."""

    def __init__(self, values: Values, gradient: Tensor, residual: Tensor, mask: Tensor, seed: int | None) -> None:
        self.body = AccumulatorBody(values, mask.numel())
        self._codec = CODECS[values]
        self._gradient, self._residual, self._mask, self._seed = gradient, residual, mask, seed
        self._sum = torch.empty(mask.numel(), dtype=torch.float32)

    def begin(self) -> int:
        nonfinite = kernels.gather(self._gradient, self._residual, self._mask, self._sum, self._mask.numel())
        if nonfinite and self._sum.isfinite().all():
            # The places miss it, but every member must see that the step is spoilt.
            self._residual[self._mask[:1].long()] += self._sum[:1]
            self._sum[:1] = torch.nan
        return nonfinite

    def add(self, body: Tensor) -> None:
        self._codec.decode(body, self._sum, 1.0, add=True)

    def pack(self, body: Tensor) -> None:
        self._add_to_residual(self._encoded(body), 1.0)

    def write_mean(self, body: Tensor, counts: float | Tensor) -> None:
        self._sum.div_(counts)
        self._add_to_residual(self._encoded(body), counts)

    def restore(self, body: Tensor) -> None:
        self._codec.decode(body, self._sum, 1.0, add=False)
        self._gradient.zero_()
        kernels.scatter_add(self._mask, self._sum, self._mask.numel(), self._gradient)

    def reclaim(self, body: Tensor, cells: list[int]) -> None:
        sent = _finite(self._codec, body, self.body.count)
        for start, end in map(self.body.cell, cells):
            kernels.scatter_add(self._mask[start:end], sent[start:end], end - start, self._residual)

    def _encoded(self, body: Tensor) -> Tensor:
        error = torch.zeros_like(self._sum)
        if self._codec.encode(self._sum, error, body, self._seed):
            error += spoilt(self._codec, self._sum, body)
        return error

    def _add_to_residual(self, error: Tensor, counts: float | Tensor) -> None:
        error.mul_(counts)
        kernels.scatter_add(self._mask, error, error.numel(), self._residual)


def _finite(codec: ValueCodec, body: Tensor, count: int) -> Tensor:
    """What a body carries; nothing where that is no number, which must not wait for a later step."""
    sent = torch.empty(count, dtype=torch.float32)
    codec.decode(body, sent, 1.0, add=False)
    return torch.where(sent.isfinite(), sent, 0.0)


def random_mask(level: Level, span: ChunkSpan) -> Tensor:
    """randk's places: drawn from the stretch, so no member has to be told."""
    return SharedMaskCodec(level).random_mask(span, torch.device("cpu"))
