"""Interface of the compression stage: `Codec` and the types in its signatures.

A codec encodes a flat float32 span of gradient into a frame. The size of a frame follows from the level and the
element count alone, so ranks exchange frames in one collective without exchanging sizes first. Encoding adds the
residual to the gradient and leaves in the residual what the frame does not carry: unsent elements and rounding errors.
Decoding writes or adds the weighted values; a corrupted frame raises IntegrityError.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from gradwire.compress.values import Ranges
from gradwire.level import Level
from gradwire.types import Energies


class Weights(Protocol):
    """The parameters of a bucket, in its order; equal on all ranks. Only pruning uses them."""

    def read(self, start: int, numel: int) -> Tensor:
        """A flat copy of a span."""
        ...

    def zero(self, places: Tensor) -> None:
        """Set single weights to zero, by their index in the bucket."""
        ...


@dataclass(frozen=True, slots=True)
class ChunkSpan:
    """Which part of the gradient a frame holds: what seeds and masks depend on, without data.

    `start` counts elements from the beginning of the bucket.
    """

    step: int
    bucket: int
    start: int
    numel: int
    weights: Weights | None = None

    def seed(self, rank: int) -> int:
        """One seed per (step, bucket, start, rank); equal inputs give equal rounding in every run."""
        mixed = self.step * 0x9E3779B1 ^ self.bucket * 0x85EBCA77 ^ self.start * 0xC2B2AE3D ^ rank * 0x27D4EB2F
        return mixed & 0x7FFFFFFF


@dataclass(frozen=True, slots=True)
class Encoded:
    """Result of an encoder: elements in the frame, number of NaN or infinite inputs, and, for sparse levels, the
    indices of the elements."""

    sent: int
    nonfinite: int = 0
    places: Tensor | None = None


class Codec(Protocol):
    """Encodes and decodes frames of one level."""

    @property
    def level(self) -> Level: ...

    def size_of(self, numel: int) -> int:
        """Bytes of a frame for `numel` elements, header included; the same on every rank."""
        ...

    def encode(
        self, gradient: Tensor, residual: Tensor | None, frame: Tensor, span: ChunkSpan, seed: int | None
    ) -> Encoded:
        """Write gradient + residual into `frame`; leave in `residual` what the frame does not carry.

        With a seed, int8, int4 and int2 values are rounded stochastically; without, to the nearest.
        """
        ...

    def decode(
        self,
        frame: Tensor,
        out: Tensor,
        span: ChunkSpan,
        weight: float = 1.0,
        add: bool = False,
        whole: bool = True,
    ) -> None:
        """out = (or +=) weight x the frame's values; elements that the frame does not carry count as zero.

        Not `whole`: some values were lost in transit; their bytes are zero and they count as zero.
        """
        ...

    def critical(self, frame: Tensor) -> int:
        """Number of leading bytes of an encoded frame that are needed to read its values."""
        ...

    def energies(self, frame: Tensor) -> Energies | None:
        """What the values after the critical bytes are worth; None where all are worth the same or none may be lost."""
        ...

    def places(self, frame: Tensor, span: ChunkSpan, missing: Ranges) -> Tensor:
        """Indices in the span of the elements whose values lie in the missing byte ranges of the frame."""
        ...
