"""Accumulator: sums one piece of a bucket at one member of a tree.

In: gradient and residual of the piece, bodies of children's frames. Out: bodies for the next hop. Only formats that add
without indices are possible: all elements as fp32, half, int8, int4 or int2, or the values at indices that all members
share. Each hop encodes again; its rounding error goes to that member's residual. Cells that a hop lost go back to the
sender's residual. The root rounds the mean, so its error counts `contributors` times and is stored multiplied by that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol
from zlib import crc32

import torch
from torch import Tensor

from gradwire.compress import kernels
from gradwire.compress.base import ChunkSpan
from gradwire.compress.residual import ResidualSpan
from gradwire.compress.shared_mask import SharedMaskCodec
from gradwire.compress.values import CODECS, ValueCodec, unreadable
from gradwire.errors import ConfigError
from gradwire.level import Level, Values

WORKS: Final = (
    "off, fp16, bf16, int8, int4, int2, randk:R and sharedk:R (these two also with +fp16, +bf16, +int8, +int4 or +int2)"
)
# Bytes of values that are lost or arrive together on a loss tolerant hop.
CELL: Final = 1024
_PER_CELL: Final[dict[Values, int]] = {"fp32": 256, "fp16": 512, "bf16": 512, "int8": 1024, "int4": 2048, "int2": 4096}
_BLOCK: Final[dict[Values, int]] = {"int8": kernels.INT8_BLOCK, "int4": kernels.INT4_BLOCK, "int2": kernels.INT2_BLOCK}


def check_summable(level: Level, setting: str = "level") -> Level:
    """ConfigError for a level whose payloads cannot be summed inside a tree."""
    if level.select not in ("all", "randk", "sharedk") or level.prune or level.lossless:
        raise ConfigError(f"{setting}: {level} cannot be summed inside a tree; use one of these with a plan: {WORKS}")
    return level


def frame_bytes(level: Level, numel: int) -> int:
    """Total bytes of the frames that carry `numel` elements over one edge."""
    count = numel if level.select == "all" else SharedMaskCodec(level).wanted(numel)
    return AccumulatorBody(level.values, count).nbytes


def mask_bytes(level: Level, numel: int) -> int:
    """Bytes of the indices that members agree on before `numel` elements are summed; 0 where none are sent."""
    return SharedMaskCodec(level).mask_size(numel) if level.select == "sharedk" else 0


def form_of(level: Level) -> int:
    """A hash of the level; members compare it to detect that they use different levels."""
    return crc32(str(level).encode())


@dataclass(frozen=True, slots=True)
class AccumulatorBody:
    """Layout of a frame body with `count` values: scales first (they must arrive), then values."""

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
        """Range of elements of a cell: first, and last + 1."""
        each = _PER_CELL[self.values]
        return min(place * each, self.count), min((place + 1) * each, self.count)

    def spread(self, counts: Tensor) -> Tensor:
        """Expand one number per cell to one per element."""
        return counts.float().repeat_interleave(_PER_CELL[self.values])[: self.count]


class Accumulator(Protocol):
    """The running sum of one piece at one member."""

    body: AccumulatorBody

    def begin(self) -> None:
        """Load gradient and residual."""
        ...

    def add(self, body: Tensor) -> None:
        """Add the sum in a child's body."""
        ...

    def pack(self, body: Tensor) -> None:
        """Write the sum so far; the rounding error goes to the residual."""
        ...

    def write_mean(self, body: Tensor, counts: float | Tensor) -> None:
        """At the root: write the mean over `counts` contributors (one number, or one per element)."""
        ...

    def restore(self, body: Tensor) -> None:
        """Overwrite the gradient with the mean in `body`."""
        ...

    def reclaim(self, body: Tensor, cells: list[int]) -> None:
        """These cells of what was packed did not arrive: add them back to the residual."""
        ...


class DenseAccumulator:
    """All elements; the sum is kept in the gradient tensor itself."""

    def __init__(self, values: Values, gradient: Tensor, residual: ResidualSpan, seed: int | None) -> None:
        self.body = AccumulatorBody(values, gradient.numel())
        self._codec = CODECS[values]
        self._sum, self._residual, self._seed = gradient, residual, seed

    def begin(self) -> None:
        """Nothing to load: the codec adds the residual when it packs."""

    def add(self, body: Tensor) -> None:
        self._codec.decode(body, self._sum, 1.0, add=True)

    def pack(self, body: Tensor) -> None:
        with self._residual.opened() as residual:
            self._codec.encode(self._sum, residual, body, self._seed)

    def write_mean(self, body: Tensor, counts: float | Tensor) -> None:
        self._sum.div_(counts)
        with self._residual.opened() as residual:
            residual.div_(counts)
            self._codec.encode(self._sum, residual, body, self._seed)
            residual.mul_(counts)

    def restore(self, body: Tensor) -> None:
        self._codec.decode(body, self._sum, 1.0, add=False)

    def reclaim(self, body: Tensor, cells: list[int]) -> None:
        sent = _finite(self._codec, body, self.body.count)
        with self._residual.opened(turn=1) as residual:
            for start, end in map(self.body.cell, cells):
                residual[start:end] += sent[start:end]


class SharedMaskAccumulator:
    """Values at shared indices; everything else stays in the residual."""

    def __init__(
        self, values: Values, gradient: Tensor, residual: ResidualSpan, mask: Tensor, seed: int | None
    ) -> None:
        self.body = AccumulatorBody(values, mask.numel())
        self._codec = CODECS[values]
        self._gradient, self._residual, self._mask, self._seed = gradient, residual, mask, seed
        self._sum = torch.empty(mask.numel(), dtype=torch.float32)

    def begin(self) -> None:
        with self._residual.opened() as residual:
            nonfinite = kernels.gather(self._gradient, residual, self._mask, self._sum, self._mask.numel())
            if nonfinite and self._sum.isfinite().all():
                # No shared index holds the non-finite value, but every member must see that the step is invalid.
                residual[self._mask[:1].long()] += self._sum[:1]
                self._sum[:1] = torch.nan

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
        with self._residual.opened(turn=2) as residual:
            for start, end in map(self.body.cell, cells):
                kernels.scatter_add(self._mask[start:end], sent[start:end], end - start, residual)

    def _encoded(self, body: Tensor) -> Tensor:
        error = torch.zeros_like(self._sum)
        if self._codec.encode(self._sum, error, body, self._seed):
            error += unreadable(self._codec, self._sum, body)
        return error

    def _add_to_residual(self, error: Tensor, counts: float | Tensor) -> None:
        error.mul_(counts)
        with self._residual.opened(turn=1) as residual:
            kernels.scatter_add(self._mask, error, error.numel(), residual)


def _finite(codec: ValueCodec, body: Tensor, count: int) -> Tensor:
    """Decoded values of a body; non-finite ones become 0, because a residual must stay finite."""
    sent = torch.empty(count, dtype=torch.float32)
    codec.decode(body, sent, 1.0, add=False)
    return torch.where(sent.isfinite(), sent, 0.0)


def random_mask(level: Level, span: ChunkSpan) -> Tensor:
    """The indices of randk: seeded by the span, so all members draw the same without a message."""
    return SharedMaskCodec(level).random_mask(span, torch.device("cpu"))
