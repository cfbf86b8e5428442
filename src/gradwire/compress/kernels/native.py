"""Native kernels: pass the addresses of CPU, contiguous tensors, whose dtypes and sizes are already checked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from gradwire import _native
from gradwire.compress.kernels.base import Selection

if TYPE_CHECKING:
    from torch import Tensor

_SEED = 2**64 - 1

packed_bound = _native.packed_bound


def _at(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _seed(seed: int | None) -> int | None:
    return None if seed is None else seed & _SEED


def encode_half(g: Tensor, r: Tensor | None, out: Tensor, threads: int) -> int:
    return _native.encode_half(out.dtype == torch.bfloat16, _at(g), _at(r), _at(out), g.numel(), threads)


def decode_half(src: Tensor, out: Tensor, weight: float, add: bool, threads: int) -> None:
    _native.decode_half(src.dtype == torch.bfloat16, _at(src), _at(out), src.numel(), weight, add, threads)


def round_to_bfloat(values: Tensor, out: Tensor, seed: int) -> None:
    _native.round_to_bfloat(_at(values), _at(out), values.numel(), seed & _SEED)


def encode_int8(g: Tensor, r: Tensor | None, q: Tensor, scales: Tensor, seed: int | None, threads: int) -> int:
    return _native.encode_int8(_at(g), _at(r), _at(q), _at(scales), g.numel(), _seed(seed), threads)


def encode_int4(g: Tensor, r: Tensor | None, q: Tensor, scales: Tensor, seed: int | None, threads: int) -> int:
    return _native.encode_int4(_at(g), _at(r), _at(q), _at(scales), g.numel(), _seed(seed), threads)


def encode_int2(g: Tensor, r: Tensor | None, q: Tensor, scales: Tensor, seed: int | None, threads: int) -> int:
    return _native.encode_int2(_at(g), _at(r), _at(q), _at(scales), g.numel(), _seed(seed), threads)


def decode_int8(q: Tensor, scales: Tensor, out: Tensor, weight: float, add: bool, threads: int) -> None:
    _native.decode_int8(_at(q), _at(scales), _at(out), out.numel(), weight, add, threads)


def decode_int4(q: Tensor, scales: Tensor, out: Tensor, weight: float, add: bool, threads: int) -> None:
    _native.decode_int4(_at(q), _at(scales), _at(out), out.numel(), weight, add, threads)


def decode_int2(q: Tensor, scales: Tensor, out: Tensor, weight: float, add: bool, threads: int) -> None:
    _native.decode_int2(_at(q), _at(scales), _at(out), out.numel(), weight, add, threads)


def threshold(g: Tensor, r: Tensor | None, k: int) -> float:
    return _native.threshold(_at(g), _at(r), g.numel(), k)


def select(g: Tensor, r: Tensor | None, threshold: float, indices: Tensor, values: Tensor, threads: int) -> Selection:
    found = _native.select(
        _at(g), _at(r), g.numel(), threshold, _at(indices), _at(values), indices.numel(), threads
    )  # fmt: skip
    return Selection(found.count, found.nonfinite)


def select_exact(g: Tensor, r: Tensor | None, k: int, indices: Tensor, values: Tensor, threads: int) -> Selection:
    found = _native.select_exact(_at(g), _at(r), g.numel(), k, _at(indices), _at(values), indices.numel(), threads)
    return Selection(found.count, found.nonfinite)


def select_largest(g: Tensor, r: Tensor | None, k: int, indices: Tensor, values: Tensor, threads: int) -> Selection:
    found = _native.select_largest(_at(g), _at(r), g.numel(), k, _at(indices), _at(values), indices.numel(), threads)
    return Selection(found.count, found.nonfinite)


def gather(g: Tensor, r: Tensor | None, indices: Tensor, values: Tensor, count: int) -> int:
    return _native.gather(_at(g), _at(r), g.numel(), _at(indices), _at(values), count)


def accumulate(g: Tensor, r: Tensor, threads: int) -> int:
    return _native.accumulate(_at(g), _at(r), g.numel(), threads)


def scatter_add(indices: Tensor, values: Tensor, count: int, out: Tensor, weight: float) -> bool:
    return _native.scatter_add(_at(indices), _at(values), count, _at(out), out.numel(), weight)


def pack_indices(indices: Tensor, count: int, numel: int, out: Tensor) -> int:
    return _native.pack_indices(_at(indices), count, numel, _at(out))


def unpack_indices(buf: Tensor, count: int, numel: int, indices: Tensor) -> bool:
    return _native.unpack_indices(_at(buf), buf.numel(), count, numel, _at(indices))


def checksum(buf: Tensor) -> int:
    return _native.crc32c(_at(buf), buf.numel())
