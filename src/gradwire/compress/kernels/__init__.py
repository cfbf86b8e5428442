"""Compression kernels: flat tensors in, flat tensors written in place, one pass over memory where possible.

`g` is a gradient (float32), `r` its residual (float32, changed in place) or None for no error feedback; what is encoded
is a = g + r. Elements of a that are not finite are counted and encoded, and r keeps its old value there: a NaN never
enters a residual. CPU float32 contiguous tensors run native code (AVX-512, AVX2 or scalar, chosen at run time);
anything else runs the torch reference. All of them write the same bits, for any number of threads.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from gradwire.compress.kernels import native, reference
from gradwire.compress.kernels.base import INT2_BLOCK, INT4_BLOCK, INT8_BLOCK, Selection
from gradwire.errors import IntegrityError

if TYPE_CHECKING:
    from torch import Tensor

    from gradwire.compress.kernels.base import Kernels

__all__ = [
    "INT2_BLOCK",
    "INT4_BLOCK",
    "INT8_BLOCK",
    "Selection",
    "accumulate",
    "checksum",
    "decode_half",
    "decode_int2",
    "decode_int4",
    "decode_int8",
    "encode_half",
    "encode_int2",
    "encode_int4",
    "encode_int8",
    "gather",
    "pack_indices",
    "packed_bound",
    "round_to_bfloat",
    "scatter_add",
    "select",
    "select_exact",
    "select_largest",
    "threshold",
    "unpack_indices",
]

_HALVES = (torch.float16, torch.bfloat16)


def encode_half(g: Tensor, r: Tensor | None, out: Tensor, *, threads: int = 1) -> int:
    """Round a to nearest even into `out` (float16 or bfloat16), saturating finite values; r = a - out.

    Returns how many elements were not finite.
    """
    _same(g=g.numel(), out=out.numel(), r=g.numel() if r is None else r.numel())
    if out.dtype not in _HALVES:
        raise ValueError(f"out: {out.dtype} is neither float16 nor bfloat16")
    return _pick(_fast(g, r) and _flat(out)).encode_half(g, r, out, threads)


def decode_half(src: Tensor, out: Tensor, weight: float = 1.0, add: bool = False, *, threads: int = 1) -> None:
    """Write (or add) weight * src to float32 `out`."""
    _same(src=src.numel(), out=out.numel())
    if src.dtype not in _HALVES:
        raise ValueError(f"src: {src.dtype} is neither float16 nor bfloat16")
    _pick(_fast(out) and _flat(src)).decode_half(src, out, weight, add, threads)


def round_to_bfloat(values: Tensor, out: Tensor, seed: int) -> None:
    """Round float32 `values` to bfloat16 `out`, up or down at random, so that the mean over roundings is the value.

    Finite values saturate; what bfloat16 can hold is unchanged.
    """
    _same(values=values.numel(), out=out.numel())
    if (values.dtype, out.dtype) != (torch.float32, torch.bfloat16):
        raise ValueError(f"values, out: {values.dtype} and {out.dtype} are not float32 and bfloat16")
    _pick(_fast(values) and _flat(out)).round_to_bfloat(values, out, seed)


def encode_int8(
    g: Tensor, r: Tensor | None, q: Tensor, scales: Tensor, seed: int | None = None, *, threads: int = 1
) -> int:
    """Quantise a to int8 with one scale per 256 elements; r = a - q * scale.

    Rounds to nearest, or, with a seed, stochastically and without bias. A block with a NaN or infinity decodes to
    NaN and keeps its residual. Returns how many elements were not finite.
    """
    _blocks(g, r, scales, INT8_BLOCK)
    _same(g=g.numel(), q=q.numel())
    return _pick(_fast(g, r, scales) and _flat(q, torch.int8)).encode_int8(g, r, q, scales, seed, threads)


def encode_int4(
    g: Tensor, r: Tensor | None, q: Tensor, scales: Tensor, seed: int | None = None, *, threads: int = 1
) -> int:
    """As `encode_int8`, to -7..7 with one scale per 64 elements, two to a byte (the even one in the low nibble)."""
    _blocks(g, r, scales, INT4_BLOCK)
    _same(packed=(g.numel() + 1) // 2, q=q.numel())
    return _pick(_fast(g, r, scales) and _flat(q, torch.uint8)).encode_int4(g, r, q, scales, seed, threads)


def encode_int2(
    g: Tensor, r: Tensor | None, q: Tensor, scales: Tensor, seed: int | None = None, *, threads: int = 1
) -> int:
    """As `encode_int8`, to -2..1 with one signed scale per 64 elements, four to a byte (the first in the lowest bits).

    The element of largest magnitude in a block is -2 times the scale. The other sign saturates at one scale, so even
    stochastic rounding is biased there; no residual is larger than one scale.
    """
    _blocks(g, r, scales, INT2_BLOCK)
    _same(packed=(g.numel() + 3) // 4, q=q.numel())
    return _pick(_fast(g, r, scales) and _flat(q, torch.uint8)).encode_int2(g, r, q, scales, seed, threads)


def decode_int8(
    q: Tensor, scales: Tensor, out: Tensor, weight: float = 1.0, add: bool = False, *, threads: int = 1
) -> None:
    """Write (or add) weight * (q * scale) to float32 `out`."""
    _blocks(out, None, scales, INT8_BLOCK)
    _same(q=q.numel(), out=out.numel())
    _pick(_fast(out, scales) and _flat(q, torch.int8)).decode_int8(q, scales, out, weight, add, threads)


def decode_int4(
    q: Tensor, scales: Tensor, out: Tensor, weight: float = 1.0, add: bool = False, *, threads: int = 1
) -> None:
    """Write (or add) weight * (q * scale) to float32 `out`; `q` holds as many values as `out` has elements."""
    _blocks(out, None, scales, INT4_BLOCK)
    _same(q=q.numel(), packed=(out.numel() + 1) // 2)
    _pick(_fast(out, scales) and _flat(q, torch.uint8)).decode_int4(q, scales, out, weight, add, threads)


def decode_int2(
    q: Tensor, scales: Tensor, out: Tensor, weight: float = 1.0, add: bool = False, *, threads: int = 1
) -> None:
    """Write (or add) weight * (q * scale) to float32 `out`; `q` holds as many values as `out` has elements."""
    _blocks(out, None, scales, INT2_BLOCK)
    _same(q=q.numel(), packed=(out.numel() + 3) // 4)
    _pick(_fast(out, scales) and _flat(q, torch.uint8)).decode_int2(q, scales, out, weight, add, threads)


def threshold(g: Tensor, r: Tensor | None, k: int) -> float:
    """A magnitude that about k elements of a reach or exceed (within 10 %), from a sample sized for the ratio k / n.

    Never below the smallest normal float, so zeros are never selected; infinity for k <= 0.
    """
    _same(g=g.numel(), r=g.numel() if r is None else r.numel())
    return _pick(_fast(g, r)).threshold(g, r, k)


def select(
    g: Tensor, r: Tensor | None, threshold: float, indices: Tensor, values: Tensor, *, threads: int = 1
) -> Selection:
    """Move |a| >= threshold (and NaN, infinity) to (indices, values), in index order; the rest stays in r.

    At most len(indices) are moved; what does not fit stays in r. Entries past the returned count are undefined.
    """
    _pairs(g, r, indices, values)
    if math.isnan(threshold):
        raise ValueError("threshold: NaN was passed; pass a magnitude")
    return _pick(_fast(g, r, values) and _flat(indices, torch.int32)).select(g, r, threshold, indices, values, threads)


def select_exact(
    g: Tensor, r: Tensor | None, k: int, indices: Tensor, values: Tensor, *, threads: int = 1
) -> Selection:
    """Move exactly the k largest |a| (NaN and infinity first, ties to the lower index), in index order."""
    _pairs(g, r, indices, values)
    if k > indices.numel():
        raise ValueError(f"k: {k} does not fit into indices of {indices.numel()}")
    return _pick(_fast(g, r, values) and _flat(indices, torch.int32)).select_exact(g, r, k, indices, values, threads)


def select_largest(
    g: Tensor, r: Tensor | None, k: int, indices: Tensor, values: Tensor, *, threads: int = 1
) -> Selection:
    """As `select_exact`, but values below the smallest normal float are never moved: fewer than k may be.

    The native kernel takes little more than one pass. The reference sorts; there a sampled threshold is faster.
    """
    _pairs(g, r, indices, values)
    _within(k, indices)
    kernel = _pick(_fast(g, r, values) and _flat(indices, torch.int32))
    return kernel.select_largest(g, r, k, indices, values, threads)


def gather(g: Tensor, r: Tensor | None, indices: Tensor, values: Tensor, count: int) -> int:
    """Move a at the first `count` indices to values; elsewhere r += g. Returns how many were not finite."""
    _pairs(g, r, indices, values)
    _within(count, indices)
    nonfinite = _pick(_fast(g, r, values) and _flat(indices, torch.int32)).gather(g, r, indices, values, count)
    if nonfinite < 0:
        raise IntegrityError(f"indices: one of {count} lies outside 0..{g.numel() - 1}")
    return nonfinite


def accumulate(g: Tensor, r: Tensor, *, threads: int = 1) -> int:
    """r += g, except where the sum is not finite. Returns how many were not."""
    _same(g=g.numel(), r=r.numel())
    return _pick(_fast(g, r)).accumulate(g, r, threads)


def scatter_add(indices: Tensor, values: Tensor, count: int, out: Tensor, weight: float = 1.0) -> None:
    """out[indices] += weight * values for the first `count` pairs; IntegrityError and no change if one is outside."""
    _within(count, indices)
    _within(count, values)
    if not _pick(_fast(out, values) and _flat(indices, torch.int32)).scatter_add(indices, values, count, out, weight):
        raise IntegrityError(f"indices: one of {count} lies outside 0..{out.numel() - 1}")


def packed_bound(count: int, numel: int) -> int:
    """The most bytes that any set of `count` indices below `numel` packs into."""
    return native.packed_bound(count, numel)


def pack_indices(indices: Tensor, count: int, numel: int, out: Tensor) -> int:
    """Pack strictly increasing indices below numel into `out` (uint8); returns the bytes used.

    Other devices are copied to the CPU: a bit stream is not worth parallel passes. (Also unpacking and checksum.)
    """
    _within(count, indices)
    bound = packed_bound(count, numel)
    if out.numel() < bound:
        raise ValueError(f"out: {out.numel()} bytes is less than packed_bound, {bound}")
    if _flat(indices, torch.int32) and _flat(out, torch.uint8):
        used = native.pack_indices(indices, count, numel, out)
    else:
        packed = torch.empty(bound, dtype=torch.uint8)
        used = native.pack_indices(indices[:count].to("cpu", torch.int32).contiguous(), count, numel, packed)
        out[: max(used, 0)].copy_(packed[: max(used, 0)])
    if used < 0:
        raise IntegrityError(f"indices: {count} indices do not strictly increase below {numel}")
    return used


def unpack_indices(buf: Tensor, count: int, numel: int, indices: Tensor) -> None:
    """Read all of `buf` (uint8) into indices[:count]; IntegrityError for bytes that are not such a set."""
    _within(count, indices)
    if _flat(buf, torch.uint8) and _flat(indices, torch.int32):
        good = native.unpack_indices(buf, count, numel, indices)
    else:
        found = torch.empty(count, dtype=torch.int32)
        good = native.unpack_indices(buf.to("cpu", torch.uint8).contiguous(), count, numel, found)
        indices[:count].copy_(found)
    if not good:
        raise IntegrityError(f"packed indices: {buf.numel()} bytes are not a set of {count} indices below {numel}")


def checksum(buf: Tensor) -> int:
    """CRC32C of a uint8 tensor."""
    if buf.dtype != torch.uint8:
        raise ValueError(f"buf: {buf.dtype} is not uint8; pass tensor.view(torch.uint8)")
    return native.checksum(buf if _flat(buf) else buf.cpu().contiguous())


def _flat(tensor: Tensor, dtype: torch.dtype | None = None) -> bool:
    return tensor.device.type == "cpu" and tensor.is_contiguous() and dtype in (None, tensor.dtype)


def _fast(*tensors: Tensor | None) -> bool:
    return all(tensor is None or _flat(tensor, torch.float32) for tensor in tensors)


def _pick(fast: bool) -> Kernels:
    return native if fast else reference


def _same(**sizes: int) -> None:
    if len(set(sizes.values())) > 1:
        raise ValueError("sizes differ: " + ", ".join(f"{name} {size}" for name, size in sizes.items()))


def _blocks(g: Tensor, r: Tensor | None, scales: Tensor, block: int) -> None:
    _same(g=g.numel(), r=g.numel() if r is None else r.numel())
    _same(scales=scales.numel(), blocks=-(-g.numel() // block))


def _pairs(g: Tensor, r: Tensor | None, indices: Tensor, values: Tensor) -> None:
    _same(g=g.numel(), r=g.numel() if r is None else r.numel())
    if g.numel() > 2**31 - 1:
        raise ValueError(f"g: {g.numel()} elements exceed 32-bit indices; split the bucket")
    if values.numel() < indices.numel():
        raise ValueError(f"values: {values.numel()} is less than the {indices.numel()} of indices")


def _within(count: int, tensor: Tensor) -> None:
    if not 0 <= count <= tensor.numel():
        raise ValueError(f"count: {count} lies outside 0..{tensor.numel()}")
