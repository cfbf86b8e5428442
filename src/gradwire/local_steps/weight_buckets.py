"""Weight buckets: which parameters are synchronised together, in flat memory.

In: a model's parameters by name, in their order. Out: groups of one device and one type, of about CAP bytes. A group's
flat copy has float32 values, or the parameters' own type where that is wider: the global weights of a bfloat16 model
are float32, and the model has them rounded. Of a sharded parameter (DTensor) a group has this rank's shard, which may
be empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from gradwire.types import Bucket, ParameterSlice

# Bytes of a bucket: DDP's own default. The pipeline divides buckets into chunks; buckets let it begin with the first
# one while the next pseudo-gradient is computed.
CAP: Final = 25 * 2**20

Named = tuple[str, nn.Parameter]


def group_parameters(named: Iterable[Named], cap: int = CAP) -> Iterator[list[Named]]:
    """Groups in the given order; a parameter larger than `cap` has one of its own."""
    group: list[Named] = []
    size = 0
    for name, parameter in named:
        nbytes = own_values(parameter).numel() * flat_type(parameter).itemsize
        if group and ((size and size + nbytes > cap) or _kind(parameter) != _kind(group[0][1])):
            yield group
            group, size = [], 0
        group.append((name, parameter))
        size += nbytes
    if group:
        yield group


def own_values(tensor: Tensor) -> Tensor:
    """What this rank has of it, without gradients: the same memory. FSDP2 may move a shard, so ask again each time."""
    detached = tensor.detach()
    return detached.to_local() if isinstance(detached, DTensor) else detached


def flat_type(parameter: Tensor) -> torch.dtype:
    return torch.promote_types(parameter.dtype, torch.float32)


def describe(index: int, group: list[Named], is_last: bool) -> Bucket:
    """The group as a bucket of step 0."""
    offset, slices = 0, []
    for name, parameter in group:
        values = own_values(parameter)
        slices.append(ParameterSlice(name, offset, tuple(values.shape), values.numel()))
        offset += values.numel()
    return Bucket(index, 0, offset, flat_type(group[0][1]).itemsize, tuple(slices), is_last)


def _kind(parameter: Tensor) -> tuple[torch.device, torch.dtype]:
    return parameter.device, flat_type(parameter)
