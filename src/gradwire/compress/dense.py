"""Dense codec: every element is sent, with fewer bits each. Error feedback, rounding and packing take one pass."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from gradwire.compress.base import ChunkSpan, Encoded
from gradwire.compress.frame import HEADER, aligned, counts, open_frame, seal
from gradwire.compress.values import CODECS, Ranges, frame_energies, values_within
from gradwire.errors import IntegrityError
from gradwire.level import Level
from gradwire.types import Energies


@dataclass(frozen=True, slots=True)
class DenseCodec:
    """All elements, in the format `level.values`."""

    level: Level

    def size_of(self, numel: int) -> int:
        return aligned(HEADER + CODECS[self.level.values].nbytes(numel))

    def encode(
        self, gradient: Tensor, residual: Tensor | None, frame: Tensor, span: ChunkSpan, seed: int | None
    ) -> Encoded:
        numel = gradient.numel()
        body = CODECS[self.level.values].nbytes(numel)
        out = frame[HEADER : HEADER + body]
        nonfinite = CODECS[self.level.values].encode(gradient, residual, out, seed)
        seal(frame, self.level, numel, numel, body)
        return Encoded(numel, nonfinite)

    def decode(
        self, frame: Tensor, out: Tensor, span: ChunkSpan, weight: float = 1.0, add: bool = False, whole: bool = True
    ) -> None:
        header = open_frame(frame, self.level, out.numel(), whole)
        if header.body != CODECS[self.level.values].nbytes(out.numel()):
            raise IntegrityError(f"frame body of {header.body} bytes does not fit {out.numel()} values")
        CODECS[self.level.values].decode(frame[HEADER : HEADER + header.body], out, weight, add)

    def critical(self, frame: Tensor) -> int:
        return HEADER + CODECS[self.level.values].head(counts(frame)[0])

    def energies(self, frame: Tensor) -> Energies | None:
        return frame_energies(self.level, frame, counts(frame)[0], HEADER)

    def places(self, frame: Tensor, span: ChunkSpan, missing: Ranges) -> Tensor:
        return values_within(CODECS[self.level.values], span.numel, missing, HEADER)
