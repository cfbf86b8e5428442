"""Unused parameters: what was sent for a parameter that no rank used in a step goes on waiting.

With `find_unused_parameters` DDP leaves the gradient of a parameter alone that no rank used. Its residual may have been
sent with the bucket all the same, and the mean that came back is then applied by nobody. Every rank takes that mean
back into its own residual: the mean of what waits is what it was. A gradient that the parameter still has from earlier
steps (two optimizers in turn, each of which clears only its own) was in the bucket too, and is where it was: that part
of the mean is not taken back. Where nothing waited and nothing was compressed, nothing is taken back.

In: buckets as DDP hands them out. A gradient was left alone if there is none, or if DDP wrote nothing to it and it is
no part of the bucket's own memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from gradwire.integrations.bucket_layout import in_bucket_order
from gradwire.runtime.loss_scaling import LossScaling
from gradwire.types import Bucket


@dataclass(frozen=True, slots=True)
class SentBucket:
    """A bucket on its way, and whether anything waited for it before."""

    bucket: Bucket
    buffer: Tensor
    parameters: Sequence[Tensor]
    waited: bool


class UnusedParameters:
    """One attached model's parameters, from the end of a backward to DDP's writing of the gradients."""

    def __init__(self, scaling: LossScaling) -> None:
        self._scaling = scaling
        self._noted: dict[int, SentBucket] = {}
        self._versions: dict[int, list[int | None]] = {}

    def note(self, bucket: Bucket, buffer: Tensor, parameters: Sequence[Tensor]) -> None:
        """Called before the bucket is sent."""
        self._noted[bucket.index] = SentBucket(bucket, buffer, parameters, self._scaling.pending(bucket))

    def drop(self) -> None:
        """Nobody will tell what DDP does with the buckets of this step."""
        self._noted.clear()

    def watch(self) -> None:
        """Called when all buckets are restored and before DDP copies them."""
        self._versions = {
            index: [None if parameter.grad is None else parameter.grad._version for parameter in noted.parameters]
            for index, noted in self._noted.items()
        }

    def take_back(self) -> None:
        """Called when DDP has written the gradients."""
        for index, noted in self._noted.items():
            bucket, buffer = noted.bucket, noted.buffer
            if not (noted.waited or self._scaling.pending(bucket)):
                continue
            for part, parameter, version in zip(bucket.slices, noted.parameters, self._versions[index], strict=True):
                if _left_alone(parameter.grad, version, buffer):
                    mean = buffer[part.offset : part.offset + part.numel]
                    kept = None if parameter.grad is None else in_bucket_order(parameter.grad, parameter)
                    self._scaling.take_back(bucket, part, mean, kept)
        self._noted.clear()


def _left_alone(gradient: Tensor | None, version: int | None, buffer: Tensor) -> bool:
    if gradient is None:
        return True
    own = gradient.untyped_storage().data_ptr() == buffer.untyped_storage().data_ptr()
    return not own and gradient._version == version
