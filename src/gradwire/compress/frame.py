"""Frame format: a 32-byte header, then the codec's sections (indices, values), each at a known offset.

    offset  bytes  field
    0       2      magic "gw"
    2       1      layout version
    3       1      select (what is kept)
    4       1      values (how a kept value is written)
    5       3      reserved, zero
    8       4      numel: elements of the span
    12      4      count: elements in the frame
    16      4      index: bytes of the index section, which is padded to a multiple of eight; the values follow it
    20      4      body: bytes used after the header
    24      4      reserved, zero
    28      4      CRC-32 of the header's first 28 bytes, xor CRC-32C of the body

All little-endian. A frame may be longer than header + body; the rest is padding and not checked. The size of a frame
is a multiple of eight bytes, so that adjacent frames in a buffer stay aligned for numbers.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from gradwire.compress import kernels
from gradwire.errors import IntegrityError
from gradwire.level import SPARSE, VALUES, Level

VERSION: Final = 1
HEADER: Final = 32
_STRUCT: Final = struct.Struct("<2sBBB3xIIII4xI")
_SELECTS: Final = ("all", *SPARSE)


@dataclass(frozen=True, slots=True)
class Header:
    """A parsed and checked frame header."""

    select: str
    values: str
    numel: int
    count: int
    index: int
    body: int


def aligned(nbytes: int) -> int:
    """The next multiple of eight."""
    return -(-nbytes // 8) * 8


def kinds(level: Level) -> tuple[int, int]:
    """The first two words of a header, as numbers."""
    first = bytes([*b"gw", VERSION, _SELECTS.index(level.select)])
    return int.from_bytes(first, "little"), VALUES.index(level.values)


def complete(frame: Tensor) -> tuple[int, int]:
    """Finish a frame in host memory that a device has written all of but the checksum. There the word before it holds
    the number of elements that were not finite; returns how many elements the frame has, and that number."""
    head = bytearray(frame[:HEADER].numpy().tobytes())
    count, body = _STRUCT.unpack(head)[5], _STRUCT.unpack(head)[7]
    (nonfinite,) = struct.unpack_from("<I", head, HEADER - 8)
    struct.pack_into("<I", head, HEADER - 8, 0)
    checksum = crc32(head[: HEADER - 4]) ^ kernels.checksum(frame[HEADER : HEADER + body])
    struct.pack_into("<I", head, HEADER - 4, checksum)
    frame[:HEADER].numpy()[:] = np.frombuffer(head, np.uint8)
    return count, nonfinite


def seal(frame: Tensor, level: Level, numel: int, count: int, body: int, index: int = 0) -> None:
    """Write the header of a frame whose body is already in place."""
    select, values = _SELECTS.index(level.select), VALUES.index(level.values)
    head = bytearray(_STRUCT.pack(b"gw", VERSION, select, values, numel, count, index, body, 0))
    checksum = crc32(head[: HEADER - 4]) ^ kernels.checksum(frame[HEADER : HEADER + body])
    struct.pack_into("<I", head, HEADER - 4, checksum)
    if frame.device.type == "cpu":
        frame[:HEADER].numpy()[:] = np.frombuffer(head, np.uint8)
    else:
        frame[:HEADER].copy_(torch.frombuffer(head, dtype=torch.uint8))


def open_frame(frame: Tensor, level: Level, numel: int, whole: bool = True) -> Header:
    """Check a frame against what the receiver expects and return its header.

    The checksum of a frame with missing values (not `whole`) cannot match, so it is not checked: the wire that may lose
    packets (LTP) authenticates each of them."""
    if frame.numel() < HEADER:
        raise IntegrityError(f"frame of {frame.numel()} bytes is shorter than its {HEADER}-byte header")
    head = frame[:HEADER].cpu().numpy().tobytes()
    magic, version, select, values, got_numel, count, index, body, checksum = _STRUCT.unpack(head)
    if magic != b"gw":
        raise IntegrityError("frame does not start with gradwire's magic bytes: it may be another program's data")
    if version != VERSION:
        raise IntegrityError(
            f"frame has format version {version}, this rank reads {VERSION}; run the same gradwire on every rank"
        )
    if select >= len(_SELECTS) or values >= len(VALUES):
        raise IntegrityError("frame header names an unknown selection or value format")
    if (_SELECTS[select], VALUES[values]) != (level.select, level.values):
        raise IntegrityError(
            f"frame is {_SELECTS[select]}/{VALUES[values]}, expected {level}: ranks disagree on the level"
        )
    if got_numel != numel or count > numel:
        raise IntegrityError(f"frame holds {count} of {got_numel} elements, expected a span of {numel}")
    if body > frame.numel() - HEADER:
        raise IntegrityError(f"frame is truncated: {body} bytes announced, {frame.numel() - HEADER} present")
    if index > body:
        raise IntegrityError(f"frame announces {index} bytes of indices in a body of {body}")
    if whole and checksum != crc32(head[: HEADER - 4]) ^ kernels.checksum(frame[HEADER : HEADER + body]):
        raise IntegrityError("frame checksum does not match: the frame was corrupted in transit")
    return Header(_SELECTS[select], VALUES[values], got_numel, count, index, body)


def counts(frame: Tensor) -> tuple[int, int]:
    """Number of values and bytes of indices, from the header of a frame that this rank encoded."""
    fields = _STRUCT.unpack(frame[:HEADER].cpu().numpy().tobytes())
    return fields[5], fields[6]
