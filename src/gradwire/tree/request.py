"""Bucket request: one bucket as the executor receives it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from gradwire.level import Level
from gradwire.types import Bucket

Done = Callable[[BaseException | None], None]


@dataclass(frozen=True, slots=True)
class BucketRequest:
    """One bucket to be summed: float32 gradient (overwritten) and residual as it is stored, flat and on the
    CPU.

    `weight` is the number of contributions that are already summed in it; with 0 the member adds nothing. `own_level`:
    it is sent at `level` also where the plan decides the level of gradients.
    """

    bucket: Bucket
    level: Level
    gradient: Tensor
    residual: Tensor
    done: Done
    weight: int = 1
    own_level: bool = False
