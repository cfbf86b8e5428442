"""Unused parameters: returns to the residual what was sent for a parameter that no rank used in a step.

With `find_unused_parameters`, DDP does not write the gradient of a parameter that no rank used. Its residual may have
been sent with the bucket all the same, and no rank applies the mean. So every rank adds that mean to its own residual:
the mean of all residuals is what it was. A gradient that the parameter still has from earlier steps (two optimizers in
turn, each of which clears only its own) was in the bucket too and still exists: that part of the mean is not returned.
Where the residual was empty and nothing was compressed, nothing is returned.

In: buckets as DDP passes them to the hook. DDP did not write a gradient if there is none, or if its version did not
change and it is not part of the bucket's own memory.
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
    """A bucket in flight, and whether it had a residual before."""

    bucket: Bucket
    buffer: Tensor
    parameters: Sequence[Tensor]
    had_residual: bool


class UnusedParameters:
    """One model's buckets, from the hook until DDP has written the gradients."""

    def __init__(self, scaling: LossScaling) -> None:
        self._scaling = scaling
        self._sent: dict[int, SentBucket] = {}
        self._versions: dict[int, list[int | None]] = {}

    def add(self, bucket: Bucket, buffer: Tensor, parameters: Sequence[Tensor]) -> None:
        """Called before the bucket is sent."""
        self._sent[bucket.index] = SentBucket(bucket, buffer, parameters, self._scaling.pending(bucket))

    def clear(self) -> None:
        """Forget the buckets of this step: there is no callback after DDP writes its gradients."""
        self._sent.clear()

    def save_versions(self) -> None:
        """Called when all buckets are restored, before DDP copies them."""
        self._versions = {
            index: [None if parameter.grad is None else parameter.grad._version for parameter in sent.parameters]
            for index, sent in self._sent.items()
        }

    def return_means(self) -> None:
        """Called when DDP has written the gradients."""
        for index, sent in self._sent.items():
            bucket, buffer = sent.bucket, sent.buffer
            if not (sent.had_residual or self._scaling.pending(bucket)):
                continue
            for part, parameter, version in zip(bucket.slices, sent.parameters, self._versions[index], strict=True):
                if _not_written(parameter.grad, version, buffer):
                    mean = buffer[part.offset : part.offset + part.numel]
                    kept = None if parameter.grad is None else in_bucket_order(parameter.grad, parameter)
                    self._scaling.return_mean(bucket, part, mean, kept)
        self._sent.clear()


def _not_written(gradient: Tensor | None, version: int | None, buffer: Tensor) -> bool:
    if gradient is None:
        return True
    own = gradient.untyped_storage().data_ptr() == buffer.untyped_storage().data_ptr()
    return not own and gradient._version == version
