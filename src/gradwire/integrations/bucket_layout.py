"""Bucket layout: in which order DDP puts a parameter's elements into a bucket.

It is the order of the parameter's memory (channels last, for example) if that has no gaps, and row by row otherwise.
"""

from __future__ import annotations

import torch
from torch import Tensor


def as_parameter(flat: Tensor, parameter: Tensor) -> Tensor:
    """A flat part of a bucket as a view with the parameter's shape."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(parameter.shape, parameter.stride(), strict=True))
    stride = parameter.stride() if span == parameter.numel() else torch.empty(parameter.shape, device="meta").stride()
    return flat.as_strided(parameter.shape, stride)


def in_bucket_order(values: Tensor, parameter: Tensor) -> Tensor:
    """A flat copy of values that have the parameter's shape."""
    flat = values.new_empty(parameter.numel())
    as_parameter(flat, parameter).copy_(values)
    return flat
