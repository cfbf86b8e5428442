"""Reduce ops: torch's ReduceOp as functions on flat tensors, applied in rank order on every rank.

The order is the same wherever a sum is computed, so all ranks get identical bits, and small and large tensors the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.errors import ConfigError

Combine = Callable[[Tensor, Tensor, Tensor], object]


def _into(function: Any) -> Combine:
    def combine(left: Tensor, right: Tensor, out: Tensor) -> object:
        return function(left, right, out=out)

    return combine


_COMBINE: Final[dict[str, Combine]] = {
    "sum": _into(torch.add),
    "avg": _into(torch.add),
    "product": _into(torch.mul),
    "min": _into(torch.minimum),
    "max": _into(torch.maximum),
    "band": _into(torch.bitwise_and),
    "bor": _into(torch.bitwise_or),
    "bxor": _into(torch.bitwise_xor),
}
_NAMES: Final = (("SUM", "sum"), ("AVG", "avg"), ("PRODUCT", "product"), ("MIN", "min"), ("MAX", "max"),
                 ("BAND", "band"), ("BOR", "bor"), ("BXOR", "bxor"))  # fmt: skip


def name_of(op: object, dtype: torch.dtype) -> str:
    """The operator's name; ConfigError for one that does not fit the type."""
    for theirs, ours in _NAMES:
        if op == getattr(dist.ReduceOp, theirs):
            if dtype.is_complex and ours in ("min", "max"):
                raise ConfigError(f"reduce op {theirs}: complex numbers have no order")
            if dtype.is_floating_point and ours in ("band", "bor", "bxor"):
                raise ConfigError(f"reduce op {theirs}: needs integers, not {dtype}")
            return ours
    raise ConfigError("reduce op: write one of SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR and BXOR")


def fold(reduce_op: str, rows: Sequence[Tensor], out: Tensor) -> None:
    """`out` becomes rows[0] . rows[1] . ..., from left to right. `out` may be one of the rows; row 0 is overwritten
    when it is a later one."""
    combine = _COMBINE[reduce_op]
    if len(rows) == 1:
        out.copy_(rows[0])
    own = next((index for index, row in enumerate(rows) if row.data_ptr() == out.data_ptr()), 1)
    total = rows[0]
    for index, row in enumerate(rows[1:], 1):
        target = out if index >= own else total
        combine(total, row, target)
        total = target
    if reduce_op == "avg":
        _divide(out, len(rows))


def _divide(out: Tensor, count: int) -> None:
    if out.dtype.is_floating_point or out.dtype.is_complex:
        out.div_(count)
    else:
        out.div_(count, rounding_mode="trunc")
