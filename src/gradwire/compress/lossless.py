"""Lossless codec: zstd over another codec's frame, used only where it makes the frame smaller.

    offset  bytes  field
    0       2      magic "gz"
    2       1      layout version
    3       1      1: the rest is zstd, 0: the rest is the frame itself
    4       4      bytes that follow

The inner frame has its own checksum. Data that decompresses to more than the largest possible frame is refused.
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
from gradwire.types import Energies

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

PREFIX: Final = 8
VERSION: Final = 1
# zstd's fastest regular level, because this runs before every send. Higher levels were not tried.
EFFORT: Final = 1
# zstd is used when the result is below this share of the frame; smaller savings are not worth the time.
WORTH_IT: Final = 0.97
# The first bytes of a frame are compressed on trial, to predict whether the whole frame would shrink.
SAMPLE: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Lossless:
    """Another codec's frames, compressed with zstd."""

    level: Level
    inner: Codec

    def size_of(self, numel: int) -> int:
        """The largest possible frame; `used` is the size of an actual one."""
        return PREFIX + self.inner.size_of(numel)

    def encode(
        self, gradient: Tensor, residual: Tensor | None, frame: Tensor, span: ChunkSpan, seed: int | None
    ) -> Encoded:
        done = self.inner.encode(gradient, residual, frame[PREFIX:], span, seed)
        data = bytes(frame[PREFIX : self.size_of(gradient.numel())].cpu().numpy())
        packed = zstd.compress(data, EFFORT) if self._pays(data) else data
        shrunk = len(packed) < WORTH_IT * len(data)
        if shrunk:
            frame[PREFIX : PREFIX + len(packed)].copy_(torch.frombuffer(bytearray(packed), dtype=torch.uint8))
        prefix = struct.pack("<2sBBI", b"gz", VERSION, shrunk, len(packed) if shrunk else len(data))
        frame[:PREFIX].copy_(torch.frombuffer(bytearray(prefix), dtype=torch.uint8))
        return done

    def decode(
        self, frame: Tensor, out: Tensor, span: ChunkSpan, weight: float = 1.0, add: bool = False, whole: bool = True
    ) -> None:
        self.inner.decode(self._decompressed(frame, self.inner.size_of(out.numel())), out, span, weight, add)

    def critical(self, frame: Tensor) -> int:
        """All of it: zstd cannot decompress a frame with a missing byte."""
        return frame.numel()

    def energies(self, frame: Tensor) -> Energies | None:
        return None

    def places(self, frame: Tensor, span: ChunkSpan, missing: Ranges) -> Tensor:
        raise IntegrityError("a zstd-compressed frame cannot be read in part")

    @staticmethod
    def used(frame: Tensor) -> int:
        """Bytes of a frame that must be sent."""
        return PREFIX + int(struct.unpack("<I", bytes(frame[4:PREFIX].cpu().numpy()))[0])

    @staticmethod
    def _pays(data: bytes) -> bool:
        sample = data[: min(len(data), SAMPLE)]
        return len(zstd.compress(sample, EFFORT)) < WORTH_IT * len(sample)

    @staticmethod
    def _decompressed(frame: Tensor, most: int) -> Tensor:
        if frame.numel() < PREFIX:
            raise IntegrityError(f"frame of {frame.numel()} bytes is shorter than its {PREFIX}-byte prefix")
        magic, version, compressed, length = struct.unpack("<2sBBI", bytes(frame[:PREFIX].cpu().numpy()))
        if magic != b"gz" or version != VERSION or compressed > 1:
            raise IntegrityError("frame is not a zstd frame of this version; run the same gradwire on every rank")
        if length > frame.numel() - PREFIX:
            raise IntegrityError(f"frame is truncated: {length} bytes announced, {frame.numel() - PREFIX} present")
        body = frame[PREFIX : PREFIX + length]
        if not compressed or not length:
            return body
        try:
            data = zstd.ZstdDecompressor().decompress(bytes(body.cpu().numpy()), max_length=most + 1)
        except zstd.ZstdError as error:
            raise IntegrityError(f"frame does not decompress: {error}") from error
        if not 0 < len(data) <= most:
            raise IntegrityError(f"frame decompresses to {len(data)} bytes, more than the possible {most}")
        return torch.frombuffer(bytearray(data), dtype=torch.uint8).to(frame.device)
