"""Low-rank factor kernels: two computations that every rank repeats, with the same bits on any processor.

CPU float32 contiguous tensors run native code. Anything else runs torch operations in the same order: only elementwise
ones, whose results do not depend on the vector width, and sums by halves (x[i] += x[i + half]).
"""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor

from gradwire import _native

# Relative to the largest element: keeps columns independent, and is too small to change a float32.
_RIDGE: Final = 1e-8


def orthonormalise(p: Tensor) -> None:
    """Replace a matrix's columns by an orthonormal basis, in place: Gram-Schmidt in double, twice for each column.

    A column that depends on earlier ones becomes another direction: a zero column would stay zero in all later steps.
    """
    if _flat(p):
        _native.orthonormalise(p.data_ptr(), *p.shape)
    else:
        reference_orthonormalise(p)


def multiply_factors(p: Tensor, q: Tensor, out: Tensor) -> None:
    """out = p times q, each sum in the order of p's columns."""
    if p.shape[1] != q.shape[0] or out.shape != (p.shape[0], q.shape[1]):
        raise ValueError(f"shapes differ: p {tuple(p.shape)}, q {tuple(q.shape)}, out {tuple(out.shape)}")
    if _flat(p, q, out):
        _native.multiply_factors(p.data_ptr(), q.data_ptr(), out.data_ptr(), p.shape[0], q.shape[1], p.shape[1])
    else:
        reference_multiply(p, q, out)


def reference_orthonormalise(p: Tensor) -> None:
    largest = p.abs().max().double()
    columns = (p.double() / torch.where(largest > 0, largest, 1.0)).T.contiguous()
    for k, own in enumerate(columns):
        if k < len(own):
            own[k] += _RIDGE
        for _ in range(2):
            for other in columns[:k]:
                own.sub_(_dot(other, own) * other)
        # math.sqrt is correctly rounded, torch's sqrt may not be. Dividing by a tensor divides; dividing by a Python
        # number may multiply by its inverse.
        own.div_(own.new_tensor(math.sqrt(float(_dot(own, own))) or 1.0))
    p.copy_(columns.T)


def reference_multiply(p: Tensor, q: Tensor, out: Tensor) -> None:
    out.copy_(p[:, :1] * q[0])
    for k in range(1, p.shape[1]):
        out.add_(p[:, k : k + 1] * q[k])


def _dot(a: Tensor, b: Tensor) -> Tensor:
    products = a * b
    left = len(products)
    while left > 1:
        half = (left + 1) // 2
        products[: left - half] += products[half:left]
        left = half
    return products[0]


def _flat(*tensors: Tensor) -> bool:
    return all(t.device.type == "cpu" and t.dtype == torch.float32 and t.is_contiguous() for t in tensors)
