"""The compress room's contract.

A codec turns a flat float32 stretch of gradient into a frame: bytes of a size every rank knows beforehand from
(level, element count) alone, so that frames travel in one collective without a round of sizes. Encoding takes the
residual in and leaves in it whatever the frame does not carry: unsent elements and rounding errors. Decoding writes
or adds a weighted stretch; a frame that is not what its sender made raises IntegrityError.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from gradwire.compress.values import Ranges
from gradwire.level import Level


class Weights(Protocol):
    """The parameters under a bucket, in its order; equal on all ranks. Only pruning looks at them."""

    def read(self, start: int, numel: int) -> Tensor:
        """A flat copy of a stretch."""
        ...

    def zero(self, places: Tensor) -> None:
        """Set single weights to zero, by their place in the bucket."""
        ...


@dataclass(frozen=True, slots=True)
class ChunkSpan:
    """Which part of the gradient a frame is about: enough to seed, to mask and to name it; no data.

    `start` counts elements from the beginning of the bucket.
    """

    step: int
    bucket: int
    start: int
    numel: int
    weights: Weights | None = None

    def seed(self, rank: int) -> int:
        """One seed per (step, bucket, place, rank); equal inputs give equal rounding on every run."""
        mixed = self.step * 0x9E3779B1 ^ self.bucket * 0x85EBCA77 ^ self.start * 0xC2B2AE3D ^ rank * 0x27D4EB2F
        return mixed & 0x7FFFFFFF


@dataclass(frozen=True, slots=True)
class Encoded:
    """What an encoder did: elements it put on the wire, how many inputs were NaN or infinite, and, for sparse forms,
    the places it took them from."""

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
        self, gradient: Tensor, residual: Tensor | None, frame: Tensor, stretch: ChunkSpan, seed: int | None
    ) -> Encoded:
        """Write gradient + residual into `frame`; leave in `residual` what the frame does not carry.

        With a seed, whole-number values are rounded stochastically; without, to the nearest.
        """
        ...

    def decode(
        self,
        frame: Tensor,
        out: Tensor,
        stretch: ChunkSpan,
        weight: float = 1.0,
        add: bool = False,
        whole: bool = True,
    ) -> None:
        """out = (or +=) weight x what the frame carries; elements it does not carry count as zero.

        Not `whole`: values are missing (their bytes zero), and count as zero.
        """
        ...

    def critical(self, frame: Tensor) -> int:
        """Leading bytes of an encoded frame without which its values cannot be read."""
        ...

    def places(self, frame: Tensor, stretch: ChunkSpan, missing: Ranges) -> Tensor:
        """The elements of the stretch whose values lie in the missing byte ranges of the frame."""
        ...
