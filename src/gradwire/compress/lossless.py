"""Lossless: zstd over a finished frame, kept only where it makes the frame smaller.

    offset  bytes  field
    0       2      magic "gz"
    2       1      layout version
    3       1      1: the rest is zstd, 0: the rest is the frame itself
    4       4      bytes that follow

The inner frame carries its own checksum. What decompresses to more than the frame could ever be is refused.
"""

from __future__ import annotations

import struct
import sys
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from gradwire.compress.base import ChunkSpan, Codec, Encoded
from gradwire.compress.values import Ranges
from gradwire.errors import IntegrityError
from gradwire.level import Level

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

PREFIX: Final = 8
VERSION: Final = 1
# zstd's fastest ordinary level: this runs on the way to the network, every step. Higher ones were not tried.
EFFORT: Final = 1
# A frame must shrink at least this much for the bytes saved to be worth the time.
WORTH_IT: Final = 0.97
# Looking at this much of a frame tells whether the whole would shrink.
SAMPLE: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Lossless:
    """Another codec's frames, squeezed."""

    level: Level
    inner: Codec

    def size_of(self, numel: int) -> int:
        """The largest a frame can be; `used` tells what one really takes."""
        return PREFIX + self.inner.size_of(numel)

    def encode(
        self, gradient: Tensor, residual: Tensor | None, frame: Tensor, stretch: ChunkSpan, seed: int | None
    ) -> Encoded:
        done = self.inner.encode(gradient, residual, frame[PREFIX:], stretch, seed)
        data = bytes(frame[PREFIX : self.size_of(gradient.numel())].cpu().numpy())
        packed = zstd.compress(data, EFFORT) if self._pays(data) else data
        shrunk = len(packed) < WORTH_IT * len(data)
        if shrunk:
            frame[PREFIX : PREFIX + len(packed)].copy_(torch.frombuffer(bytearray(packed), dtype=torch.uint8))
        prefix = struct.pack("<2sBBI", b"gz", VERSION, shrunk, len(packed) if shrunk else len(data))
        frame[:PREFIX].copy_(torch.frombuffer(bytearray(prefix), dtype=torch.uint8))
        return done

    def decode(
        self, frame: Tensor, out: Tensor, stretch: ChunkSpan, weight: float = 1.0, add: bool = False, whole: bool = True
    ) -> None:
        self.inner.decode(self._unsqueeze(frame, self.inner.size_of(out.numel())), out, stretch, weight, add)

    def critical(self, frame: Tensor) -> int:
        """Everything: one lost byte spoils what zstd made of all the others."""
        return frame.numel()

    def places(self, frame: Tensor, stretch: ChunkSpan, missing: Ranges) -> Tensor:
        raise IntegrityError("a squeezed frame cannot be read in part")

    @staticmethod
    def used(frame: Tensor) -> int:
        """Bytes of a frame that must travel."""
        return PREFIX + int(struct.unpack("<I", bytes(frame[4:PREFIX].cpu().numpy()))[0])

    @staticmethod
    def _pays(data: bytes) -> bool:
        sample = data[: min(len(data), SAMPLE)]
        return len(zstd.compress(sample, EFFORT)) < WORTH_IT * len(sample)

    @staticmethod
    def _unsqueeze(frame: Tensor, most: int) -> Tensor:
        if frame.numel() < PREFIX:
            raise IntegrityError(f"payload of {frame.numel()} bytes is shorter than its {PREFIX}-byte prefix")
        magic, version, squeezed, length = struct.unpack("<2sBBI", bytes(frame[:PREFIX].cpu().numpy()))
        if magic != b"gz" or version != VERSION or squeezed > 1:
            raise IntegrityError("payload is not a squeezed frame this version can read")
        if length > frame.numel() - PREFIX:
            raise IntegrityError(f"payload is truncated: {length} bytes announced, {frame.numel() - PREFIX} there")
        body = frame[PREFIX : PREFIX + length]
        if not squeezed or not length:
            return body
        try:
            data = zstd.ZstdDecompressor().decompress(bytes(body.cpu().numpy()), max_length=most + 1)
        except zstd.ZstdError as error:
            raise IntegrityError(f"payload does not decompress: {error}") from error
        if not 0 < len(data) <= most:
            raise IntegrityError(f"payload decompresses to {len(data)} bytes; it may hold {most}")
        return torch.frombuffer(bytearray(data), dtype=torch.uint8).to(frame.device)
