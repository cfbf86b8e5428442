"""Parcel: a bucket as the walker takes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from gradwire.level import Level
from gradwire.types import Bucket

Done = Callable[[BaseException | None], None]


@dataclass(frozen=True, slots=True)
class BucketRequest:
    """One bucket to be summed: float32 gradient (overwritten) and residual, flat and on the CPU.

    `weight` is how many contributions it is the sum of already; 0 takes part and contributes nothing.
    """

    bucket: Bucket
    level: Level
    gradient: Tensor
    residual: Tensor
    done: Done
    weight: int = 1
