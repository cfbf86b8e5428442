"""Residual: how a residual is stored, and how it is read and written as float32.

Stored as float32, it is changed in place. Stored as bfloat16, it takes half the memory and is rounded whenever it is
written: up or down at random, so that the mean over roundings is the exact value. Rounding to the nearest would not do:
a residual grows by one gradient a step, and a gradient below a 512th of it would be dropped at every step, so that
elements that wait for long would stop growing and never be sent.

What one write changes is less than the distance u of two bfloat16 numbers there, which is a 128th of the value or less,
and has standard deviation u / 2 at most. Errors of different steps are independent and have mean zero, so after n steps
what was sent and what waits differ from the gradient by a standard deviation of sqrt(n) u / 2 at most: 0.4 % of the
largest residual after one step, 4 % after a hundred. What bfloat16 can hold, zero above all, is not changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor

from gradwire.compress import kernels

ResidualType = Literal["float32", "bfloat16"]
DTYPES: Final[dict[ResidualType, torch.dtype]] = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# Sets the seeds of residuals apart from those with which values are rounded in the same step.
KEPT: Final = 0x5DEECE66D


@contextmanager
def opened(stored: Tensor, seed: int, wide: Tensor | None = None) -> Iterator[Tensor]:
    """The residual as float32; what it is at the end is kept, unless an error is raised. `wide` is memory for it."""
    if stored.dtype == torch.float32:
        yield stored
        return
    if wide is None:
        wide = torch.empty(stored.numel(), dtype=torch.float32, device=stored.device)
    kernels.decode_half(stored, wide)
    yield wide
    kernels.round_to_bfloat(wide, stored, seed)


def stored_as(values: Tensor, dtype: torch.dtype, seed: int) -> Tensor:
    """A flat copy of values, as residuals of this type are stored."""
    if dtype in (torch.float32, values.dtype):
        return values.to(dtype, copy=True)
    kept = torch.empty(values.numel(), dtype=dtype, device=values.device)
    kernels.round_to_bfloat(values.flatten().float().contiguous(), kept, seed)
    return kept


@dataclass(frozen=True, slots=True)
class ResidualSpan:
    """A span of a stored residual, and the seed of its rounding. A span that is opened several times in a step has
    another `turn` each time."""

    stored: Tensor
    seed: int

    @contextmanager
    def opened(self, turn: int = 0) -> Iterator[Tensor]:
        with opened(self.stored, self.seed + (turn << 32)) as wide:
            yield wide
