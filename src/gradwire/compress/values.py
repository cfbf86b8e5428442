"""Value formats of a frame: fp32, fp16, bf16, int8, int4 or int2, the last three with one scale per block.

A value codec gives the exact number of bytes for any count, encodes float32 values (adding the residual and leaving the
rounding error in it), and decodes them, weighted, by writing or adding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

import torch
from torch import Tensor

from gradwire.compress import kernels
from gradwire.compress.kernels import INT2_BLOCK, INT4_BLOCK, INT8_BLOCK
from gradwire.level import Level, Values
from gradwire.types import Energies

# Shards of an exchange and pieces of a tree begin at multiples of the largest quantisation block, so that no block
# belongs to two of them.
ALIGN: Final = max(INT8_BLOCK, INT4_BLOCK, INT2_BLOCK)
# Bytes of values whose energy is estimated together: less than half of a packet, so that a packet has an energy of its
# own. Whole blocks of every format.
ENERGY_SPAN: Final = 512
# Of each span of floats the first fourth stands for all, which takes a fourth of the time. The standard error is 18 to
# 25 % for normal values, and bands of energy are a factor of two apart.
_SAMPLED: Final = 4
# Byte ranges (offset, length) of a frame.
Ranges = tuple[tuple[int, int], ...]


class ValueCodec(Protocol):
    """Reads and writes one value format."""

    @property
    def bits(self) -> int:
        """Bits of one value."""
        ...

    def head(self, count: int) -> int:
        """Bytes of scales before `count` values. After them value i is at bit i x `bits`; zero is all zero bits."""
        ...

    def nbytes(self, count: int) -> int: ...

    def encode(self, values: Tensor, residual: Tensor | None, out: Tensor, seed: int | None) -> int:
        """Write values + residual to the bytes `out`; returns how many inputs were NaN or infinite."""
        ...

    def decode(self, data: Tensor, out: Tensor, weight: float, add: bool) -> None: ...

    def energies(self, data: Tensor, count: int) -> Tensor:
        """The energy of every ENERGY_SPAN bytes of values after the head, up to a common factor."""
        ...


@dataclass(frozen=True, slots=True)
class Float32:
    """Unchanged values; nothing is rounded, so nothing is left in the residual."""

    bits: int = 32

    def head(self, count: int) -> int:
        return 0

    def nbytes(self, count: int) -> int:
        return 4 * count

    def encode(self, values: Tensor, residual: Tensor | None, out: Tensor, seed: int | None) -> int:
        target = out.view(torch.float32)
        target.copy_(values)
        if residual is not None:
            target.add_(residual)
        finite = target.isfinite()
        if finite.all():
            if residual is not None:
                residual.zero_()
            return 0
        if residual is not None:
            residual[finite] = 0.0
        return int((~finite).sum())

    def decode(self, data: Tensor, out: Tensor, weight: float, add: bool) -> None:
        values = data.view(torch.float32)
        if add:
            out.add_(values, alpha=weight)
        else:
            torch.mul(values, weight, out=out)

    def energies(self, data: Tensor, count: int) -> Tensor:
        return _sampled_energies(data.view(torch.float32)[:count])


@dataclass(frozen=True, slots=True)
class Half:
    """fp16 or bf16, saturated at the largest finite value."""

    dtype: torch.dtype
    bits: int = 16

    def head(self, count: int) -> int:
        return 0

    def nbytes(self, count: int) -> int:
        return 2 * count

    def encode(self, values: Tensor, residual: Tensor | None, out: Tensor, seed: int | None) -> int:
        return kernels.encode_half(values, residual, out.view(self.dtype))

    def decode(self, data: Tensor, out: Tensor, weight: float, add: bool) -> None:
        kernels.decode_half(data.view(self.dtype), out, weight=weight, add=add)

    def energies(self, data: Tensor, count: int) -> Tensor:
        return _sampled_energies(data.view(self.dtype)[:count])


@dataclass(frozen=True, slots=True)
class Int8:
    """Blocks of 256 whole numbers in -127..127 with one float32 scale each: 1.016 bytes a value."""

    bits: int = 8

    def head(self, count: int) -> int:
        return 4 * _blocks(count, INT8_BLOCK)

    def nbytes(self, count: int) -> int:
        return self.head(count) + count

    def encode(self, values: Tensor, residual: Tensor | None, out: Tensor, seed: int | None) -> int:
        scales, numbers = self._split(out, values.numel())
        return kernels.encode_int8(values, residual, numbers, scales, seed=seed)

    def decode(self, data: Tensor, out: Tensor, weight: float, add: bool) -> None:
        scales, numbers = self._split(data, out.numel())
        kernels.decode_int8(numbers, scales, out, weight=weight, add=add)

    def energies(self, data: Tensor, count: int) -> Tensor:
        return _scale_energies(data[: self.head(count)].view(torch.float32), INT8_BLOCK * self.bits // 8)

    @staticmethod
    def _split(data: Tensor, count: int) -> tuple[Tensor, Tensor]:
        cut = 4 * _blocks(count, INT8_BLOCK)
        return data[:cut].view(torch.float32), data[cut : cut + count].view(torch.int8)


@dataclass(frozen=True, slots=True)
class Int4:
    """Blocks of 64 whole numbers in -7..7, two to a byte, with one float32 scale each: 0.56 bytes a value."""

    bits: int = 4

    def head(self, count: int) -> int:
        return 4 * _blocks(count, INT4_BLOCK)

    def nbytes(self, count: int) -> int:
        return self.head(count) + (count + 1) // 2

    def encode(self, values: Tensor, residual: Tensor | None, out: Tensor, seed: int | None) -> int:
        scales, numbers = self._split(out, values.numel())
        return kernels.encode_int4(values, residual, numbers, scales, seed=seed)

    def decode(self, data: Tensor, out: Tensor, weight: float, add: bool) -> None:
        scales, numbers = self._split(data, out.numel())
        kernels.decode_int4(numbers, scales, out, weight=weight, add=add)

    def energies(self, data: Tensor, count: int) -> Tensor:
        return _scale_energies(data[: self.head(count)].view(torch.float32), INT4_BLOCK * self.bits // 8)

    @staticmethod
    def _split(data: Tensor, count: int) -> tuple[Tensor, Tensor]:
        cut = 4 * _blocks(count, INT4_BLOCK)
        return data[:cut].view(torch.float32), data[cut : cut + (count + 1) // 2]


@dataclass(frozen=True, slots=True)
class Int2:
    """Blocks of 64 whole numbers in -2..1, four to a byte, with one signed float32 scale each: 0.31 bytes a value.

    The sign of the scale gives the wider side to the block's largest element. Alternatives were trained with error
    feedback on a small GPT and a CNN: four values without zero, and three values, with scales from the largest, the
    mean, the mean square or a least squares fit. With SGD this format ends at int4's loss, most alternatives well above
    it; with AdamW it is within the noise of the best alternative, 0.02 nats above uncompressed (int4: 0.004). Blocks of
    128 were no better on the CNN and worse in one run of the GPT with SGD. A residual is never larger than the largest
    gradient of its block.
    """

    bits: int = 2

    def head(self, count: int) -> int:
        return 4 * _blocks(count, INT2_BLOCK)

    def nbytes(self, count: int) -> int:
        return self.head(count) + (count + 3) // 4

    def encode(self, values: Tensor, residual: Tensor | None, out: Tensor, seed: int | None) -> int:
        scales, numbers = self._split(out, values.numel())
        return kernels.encode_int2(values, residual, numbers, scales, seed=seed)

    def decode(self, data: Tensor, out: Tensor, weight: float, add: bool) -> None:
        scales, numbers = self._split(data, out.numel())
        kernels.decode_int2(numbers, scales, out, weight=weight, add=add)

    def energies(self, data: Tensor, count: int) -> Tensor:
        return _scale_energies(data[: self.head(count)].view(torch.float32), INT2_BLOCK * self.bits // 8)

    @staticmethod
    def _split(data: Tensor, count: int) -> tuple[Tensor, Tensor]:
        cut = 4 * _blocks(count, INT2_BLOCK)
        return data[:cut].view(torch.float32), data[cut : cut + (count + 3) // 4]


def unreadable(codec: ValueCodec, values: Tensor, data: Tensor) -> Tensor:
    """The finite values that share a block with a NaN or infinity and cannot be read from `data`; zero elsewhere."""
    carried = torch.empty_like(values)
    codec.decode(data, carried, 1.0, add=False)
    return torch.where(values.isfinite() & ~carried.isfinite(), values, 0.0)


def values_within(codec: ValueCodec, count: int, missing: Ranges, start: int) -> Tensor:
    """Indices of the values that lie (even in part) in the missing ranges, ascending: `count` values whose bytes begin
    at `start`."""
    first = start + codec.head(count)
    spans = []
    for offset, length in missing:
        low, high = max(offset - first, 0), max(offset + length - first, 0)
        spans.append(torch.arange(min(low * 8 // codec.bits, count), min(-(-high * 8 // codec.bits), count)))
    return torch.cat(spans) if spans else torch.empty(0, dtype=torch.int64)


def frame_energies(level: Level, frame: Tensor, count: int, start: int) -> Energies | None:
    """Of an encoded frame whose `count` values begin, with their head, at byte `start`."""
    codec = CODECS[level.values]
    if not count:
        return None
    found = codec.energies(frame[start : start + codec.nbytes(count)], count).nan_to_num_(0.0, 0.0, 0.0)
    return Energies(start + codec.head(count), ENERGY_SPAN, found.cpu().numpy())


def _sampled_energies(values: Tensor) -> Tensor:
    span = ENERGY_SPAN // values.itemsize
    padded = torch.nn.functional.pad(values, (0, -values.numel() % span))
    return padded.view(-1, span)[:, : span // _SAMPLED].float().square().sum(1)


def _scale_energies(scales: Tensor, block_bytes: int) -> Tensor:
    """A scale is a block's largest magnitude, up to a factor: its square is in proportion to the energy of blocks of
    like distributions, which is enough to compare them."""
    together = ENERGY_SPAN // block_bytes
    padded = torch.nn.functional.pad(scales, (0, -scales.numel() % together))
    return padded.square().view(-1, together).sum(1)


def _blocks(count: int, block: int) -> int:
    return -(-count // block)


CODECS: Final[dict[Values, ValueCodec]] = {
    "fp32": Float32(),
    "fp16": Half(torch.float16),
    "bf16": Half(torch.bfloat16),
    "int8": Int8(),
    "int4": Int4(),
    "int2": Int2(),
}
