"""Reference kernels in torch operations, for any device, dtype and stride; the native code must match bit for bit.

Written for clarity: several passes and temporaries. Each function takes the native one's arguments (`threads` is
ignored).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import torch

from gradwire.compress.kernels.base import INT2_BLOCK, INT4_BLOCK, INT8_BLOCK, Selection

if TYPE_CHECKING:
    from torch import Tensor

_SMALLEST = torch.finfo(torch.float32).tiny
_LARGEST = torch.finfo(torch.float32).max


def encode_half(g: Tensor, r: Tensor | None, out: Tensor, threads: int = 1) -> int:
    a, nonfinite = _compensated(g, r)
    limit = torch.finfo(out.dtype).max
    half = torch.where(nonfinite, a, a.clamp(-limit, limit)).to(out.dtype)
    out.copy_(torch.where(torch.isnan(half), torch.full_like(half, torch.nan), half))
    _keep(r, a - half.float(), nonfinite)
    return int(nonfinite.sum())


def decode_half(src: Tensor, out: Tensor, weight: float, add: bool, threads: int = 1) -> None:
    _write(out, _weight(weight, out) * src.float(), add)


def round_to_bfloat(values: Tensor, out: Tensor, seed: int) -> None:
    bits = values.view(torch.int32).long()
    size, up = bits & 0x7FFFFFFF, noise_bits(seed, values.numel(), values.device) >> 16
    half = (size + up >> 16).clamp(max=0x7F7F) | bits >> 16 & 0x8000
    wild = torch.where(values.isnan(), torch.nan, values).bfloat16()
    wild = torch.where(wild.isnan(), torch.full_like(wild, torch.nan), wild)
    out.copy_(torch.where(values.isfinite(), half.to(torch.int16).view(torch.bfloat16), wild))


def encode_int8(g: Tensor, r: Tensor | None, q: Tensor, scales: Tensor, seed: int | None, threads: int = 1) -> int:
    whole, count = _quantise(g, r, scales, seed, _INT8)
    q.copy_(whole.to(torch.int8))
    return count


def encode_int4(g: Tensor, r: Tensor | None, q: Tensor, scales: Tensor, seed: int | None, threads: int = 1) -> int:
    whole, count = _quantise(g, r, scales, seed, _INT4)
    nibbles = torch.zeros(2 * q.numel(), dtype=torch.int32, device=g.device)
    nibbles[: g.numel()] = whole.to(torch.int32) & 15
    q.copy_((nibbles[::2] | nibbles[1::2] << 4).to(torch.uint8))
    return count


def encode_int2(g: Tensor, r: Tensor | None, q: Tensor, scales: Tensor, seed: int | None, threads: int = 1) -> int:
    whole, count = _quantise(g, r, scales, seed, _INT2)
    codes = torch.zeros(4 * q.numel(), dtype=torch.int32, device=g.device)
    codes[: g.numel()] = whole.to(torch.int32) & 3
    q.copy_((codes[::4] | codes[1::4] << 2 | codes[2::4] << 4 | codes[3::4] << 6).to(torch.uint8))
    return count


def decode_int8(q: Tensor, scales: Tensor, out: Tensor, weight: float, add: bool, threads: int = 1) -> None:
    _write(out, _weight(weight, out) * (q.float() * _spread(scales.float(), INT8_BLOCK, q.numel())), add)


def decode_int4(q: Tensor, scales: Tensor, out: Tensor, weight: float, add: bool, threads: int = 1) -> None:
    wide = q.to(torch.int32)
    nibbles = torch.stack((wide & 15, wide >> 4), dim=1).flatten()[: out.numel()]
    signed = ((nibbles ^ 8) - 8).float()
    _write(out, _weight(weight, out) * (signed * _spread(scales.float(), INT4_BLOCK, out.numel())), add)


def decode_int2(q: Tensor, scales: Tensor, out: Tensor, weight: float, add: bool, threads: int = 1) -> None:
    wide = q.to(torch.int32)
    codes = torch.stack([wide >> shift & 3 for shift in (0, 2, 4, 6)], dim=1).flatten()[: out.numel()]
    signed = ((codes ^ 2) - 2).float()
    _write(out, _weight(weight, out) * (signed * _spread(scales.float(), INT2_BLOCK, out.numel())), add)


def threshold(g: Tensor, r: Tensor | None, k: int) -> float:
    n = g.numel()
    if k <= 0:
        return float("inf")
    if k >= n:
        return _SMALLEST
    places = _sample(n, k, g.device)
    a, nonfinite = _compensated(g if places is None else g[places], r if r is None or places is None else r[places])
    found = a[~nonfinite].abs()
    if found.numel() == 0:
        return _SMALLEST
    rank = min(max((k * found.numel() + n // 2) // n, 1), found.numel())
    return max(_SMALLEST, float(found.kthvalue(found.numel() - rank + 1).values))


def select(
    g: Tensor, r: Tensor | None, threshold: float, indices: Tensor, values: Tensor, threads: int = 1
) -> Selection:
    a, nonfinite = _compensated(g, r)
    limit = torch.tensor(threshold, dtype=torch.float32, device=g.device)
    return _emit(a, nonfinite, ((a.abs() >= limit) | nonfinite).nonzero().flatten(), r, indices, values)


def select_exact(g: Tensor, r: Tensor | None, k: int, indices: Tensor, values: Tensor, threads: int = 1) -> Selection:
    a, nonfinite = _compensated(g, r)
    return _emit(a, nonfinite, _largest(a, nonfinite, k).sort().values, r, indices, values)


def select_largest(g: Tensor, r: Tensor | None, k: int, indices: Tensor, values: Tensor, threads: int = 1) -> Selection:
    a, nonfinite = _compensated(g, r)
    places = _largest(a, nonfinite, k)
    places = places[nonfinite[places] | (a[places].abs() >= _SMALLEST)]
    return _emit(a, nonfinite, places.sort().values, r, indices, values)


def gather(g: Tensor, r: Tensor | None, indices: Tensor, values: Tensor, count: int) -> int:
    """Returns -1, with nothing written, if an index is out of range."""
    places = indices[:count].long()
    if count and not (int(places.min()) >= 0 and int(places.max()) < g.numel()):
        return -1
    a, nonfinite = _compensated(g, r)
    values[:count] = a[places]
    rest = a.clone()
    rest[places] = 0.0
    _keep(r, rest, nonfinite)
    return int(nonfinite.sum())


def accumulate(g: Tensor, r: Tensor, threads: int = 1) -> int:
    a, nonfinite = _compensated(g, r)
    _keep(r, a, nonfinite)
    return int(nonfinite.sum())


def scatter_add(indices: Tensor, values: Tensor, count: int, out: Tensor, weight: float) -> bool:
    """False, with nothing written, if an index is out of range."""
    places = indices[:count].long()
    if count and not (int(places.min()) >= 0 and int(places.max()) < out.numel()):
        return False
    out.index_add_(0, places, (_weight(weight, values) * values[:count].float()).to(out.dtype))
    return True


def noise(seed: int, n: int, device: torch.device) -> Tensor:
    """Uniform multiples of 2^-24 in [0, 1) from (seed, element index)."""
    return (noise_bits(seed, n, device) >> 8).float() * 2.0**-24


def noise_bits(seed: int, n: int, device: torch.device) -> Tensor:
    """32 random bits from (seed, element index); noise.h says how."""
    place = torch.arange(n, dtype=torch.int64, device=device)
    run = torch.arange(-(-n // 256), dtype=torch.int64, device=device)
    key = (run + 1) * _signed(0x9E3779B97F4A7C15) + _signed(seed)
    key = (key ^ _shift(key, 30, 64)) * _signed(0xBF58476D1CE4E5B9)
    key = (key ^ _shift(key, 27, 64)) * _signed(0x94D049BB133111EB)
    key = (key ^ _shift(key, 31, 64)).repeat_interleave(256)[:n]
    x = _low((place % 256) * 0x9E3779B9 + _low(key))
    return _mix(x) ^ _shift(key, 32, 64)


def _mix(x: Tensor) -> Tensor:
    x = _low((x ^ x >> 16) * 0x7FEB352D)
    x = _low((x ^ x >> 15) * 0x846CA68B)
    return x ^ x >> 16


def _low(x: Tensor) -> Tensor:
    return x & 0xFFFFFFFF


def _shift(x: Tensor, by: int, width: int) -> Tensor:
    """A logical shift to the right; int64's own shift copies the sign bit."""
    return (x >> by) & ((1 << (width - by)) - 1)


def _signed(x: int) -> int:
    x &= 2**64 - 1
    return x - 2**64 if x >= 2**63 else x


def _compensated(g: Tensor, r: Tensor | None) -> tuple[Tensor, Tensor]:
    a = g.float() if r is None else g.float() + r.float()
    return a, ~torch.isfinite(a)


def _largest(a: Tensor, nonfinite: Tensor, k: int) -> Tensor:
    """Indices of the k largest magnitudes: NaN and infinity first, ties to the lower index."""
    size = torch.where(nonfinite, torch.inf, a.abs())
    return torch.sort(size, descending=True, stable=True).indices[: max(k, 0)]


def _keep(r: Tensor | None, rest: Tensor, nonfinite: Tensor) -> None:
    """What was not sent becomes the residual, except where the value is not finite."""
    if r is not None:
        r.copy_(torch.where(nonfinite, r.float(), rest))


def _write(out: Tensor, x: Tensor, add: bool) -> None:
    out.copy_(out + x if add else x)


def _weight(weight: float, like: Tensor) -> Tensor:
    return torch.tensor(weight, dtype=torch.float32, device=like.device)


def _spread(per_block: Tensor, block: int, n: int) -> Tensor:
    return per_block.repeat_interleave(block)[:n]


class _Code(NamedTuple):
    """Elements per scale, the least and the largest whole number, and the scale of each row of a matrix."""

    block: int
    low: float
    top: float
    scale: Callable[[Tensor], Tensor]


def _even_scale(rows: Tensor, levels: float) -> Tensor:
    return (rows.abs().amax(dim=1) / levels).clamp(max=_scale_cap(levels))


def _signed_scale(rows: Tensor) -> Tensor:
    """The element of largest magnitude (the positive one of two) is -2 times the scale."""
    up, down = rows.amax(dim=1), (-rows).amax(dim=1)
    return torch.where(up >= down, -0.5 * up, 0.5 * down)


def _quantise(g: Tensor, r: Tensor | None, scales: Tensor, seed: int | None, code: _Code) -> tuple[Tensor, int]:
    a, nonfinite = _compensated(g, r)
    n, block = a.numel(), code.block
    padded = torch.zeros(scales.numel() * block, dtype=torch.float32, device=g.device)
    padded[:n] = a
    rows = padded.view(-1, block)
    bad = ~torch.isfinite(rows).all(dim=1)
    scale = code.scale(torch.where(bad[:, None], 0.0, rows)) if n else rows.new_zeros(0)
    scale = torch.where(scale.abs() >= _SMALLEST, scale, 0.0)
    inverse = torch.where(scale != 0, 1.0 / scale, 0.0)
    scales.copy_(torch.where(bad, torch.nan, scale))
    t = a * _spread(inverse, block, n)
    whole = t.round()
    if seed is not None:
        whole = t.floor()
        whole = whole + (noise(seed, n, g.device) < t - whole).float()
    whole = whole.clamp(code.low, code.top)
    bad_element = _spread(bad, block, n)
    _keep(r, a - whole * _spread(scale, block, n), bad_element)
    return torch.where(bad_element, 0.0, whole), int(nonfinite.sum())


def _scale_cap(levels: float) -> float:
    cap = torch.tensor(_LARGEST, dtype=torch.float32) / levels
    while not torch.isfinite(cap * levels):
        cap = torch.nextafter(cap, torch.zeros_like(cap))
    return float(cap)


def _sample(n: int, k: int, device: torch.device) -> Tensor | None:
    """The indices that threshold.cpp samples: one cache line from each stratum, or None for all elements."""
    size = max(64 * 1024, n * 1200 // k)
    if size > n // 4:
        return None
    strata, lines = size // 16, n // 16
    s = torch.arange(strata, dtype=torch.int64, device=device)
    step = (lines << 20) // strata
    begin, end = s * step >> 20, (s + 1) * step >> 20
    line = begin + (_mix(s) * (end - begin) >> 32)
    return (line[:, None] * 16 + torch.arange(16, device=device)).flatten()


def _emit(
    a: Tensor, nonfinite: Tensor, places: Tensor, r: Tensor | None, indices: Tensor, values: Tensor
) -> Selection:  # fmt: skip
    places = places[: indices.numel()]
    indices[: places.numel()] = places.to(indices.dtype)
    values[: places.numel()] = a[places]
    rest = a.clone()
    rest[places] = 0.0
    _keep(r, rest, nonfinite)
    return Selection(places.numel(), int(nonfinite.sum()))


_INT8: Final = _Code(INT8_BLOCK, -127.0, 127.0, partial(_even_scale, levels=127.0))
_INT4: Final = _Code(INT4_BLOCK, -7.0, 7.0, partial(_even_scale, levels=7.0))
_INT2: Final = _Code(INT2_BLOCK, -2.0, 1.0, _signed_scale)
