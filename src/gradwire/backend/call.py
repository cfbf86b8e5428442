"""Call: one collective call, as the 64-byte header of a message and as text in errors.

Every rank compares its peers' calls with its own, so that a disagreement is an error that names both sides and not a
hang or a wrong sum.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

import torch

HEADER: Final = 64
_LAYOUT: Final = struct.Struct("<4sBBBBiIQQQ")
_MAGIC: Final = b"gwc1"
NAMES: Final = (
    "all_reduce", "broadcast", "reduce", "all_gather", "gather", "scatter", "reduce_scatter", "all_to_all",
    "barrier", "send", "sparse all_reduce",
)  # fmt: skip
REDUCE_OPS: Final = ("", "sum", "avg", "product", "min", "max", "band", "bor", "bxor")
DTYPES: Final = (
    None, torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.uint8, torch.int8, torch.int16,
    torch.int32, torch.int64, torch.bool, torch.complex64, torch.complex128, torch.uint16, torch.uint32, torch.uint64,
    torch.float8_e4m3fn, torch.float8_e5m2,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Call:
    """One rank's call. `count` is in elements and 0 where ranks may differ; `root` is -1 where there is none."""

    name: str
    dtype: torch.dtype | None = None
    count: int = 0
    reduce_op: str = ""
    root: int = -1

    def pack(self, number: int, nbytes: int) -> bytes:
        """The header of a message of `nbytes` that belongs to the group's operation `number`."""
        codes = NAMES.index(self.name), DTYPES.index(self.dtype), REDUCE_OPS.index(self.reduce_op), 0
        packed = _LAYOUT.pack(_MAGIC, *codes, self.root, number & 0xFFFFFFFF, self.count, nbytes, 0)
        return packed.ljust(HEADER, b"\0")

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.") if self.dtype else ""
        count = f"{self.count} elements" if self.count else ""
        root = f"root {self.root}" if self.root >= 0 else ""
        return f"{self.name}({', '.join(filter(None, (self.reduce_op, dtype, count, root)))})"


def unpack(header: bytes) -> tuple[Call, int, int]:
    """A peer's call, its number and the bytes of the message; ValueError for anything that is no header."""
    magic, name, dtype, reduce_op, _, root, number, count, nbytes, _ = _LAYOUT.unpack_from(header)
    if magic != _MAGIC or name >= len(NAMES) or dtype >= len(DTYPES) or reduce_op >= len(REDUCE_OPS):
        raise ValueError("not a header of this version of gradwire")
    return Call(NAMES[name], DTYPES[dtype], count, REDUCE_OPS[reduce_op], root), number, nbytes
