"""Verify: compares a hash of every rank's restored gradients by one small all-reduce."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from gradwire.compress import kernels
from gradwire.errors import IntegrityError
from gradwire.transport.lanes.base import AllReduce, Op


def verify(digest: int, step: int) -> Iterator[Op]:
    """1. take the maximum of the hash of what was restored and of its negative, 2. they must cancel."""
    both = torch.tensor([digest, -digest], dtype=torch.int64)
    yield AllReduce(both, maximum=True)  # 1
    if int(both[0]) != -int(both[1]):  # 2
        raise IntegrityError(
            f"replicas differ after step {step}: ranks restored different gradients; restart from a checkpoint"
        )


def digest_of(restored: list[Tensor]) -> int:
    """Called on the training thread: on a device, its stream waits for the restored values, other threads' do not."""
    digest = 0
    for tensor in (part for whole in restored for part in _dense(whole)):
        digest = digest * 31 % 2**40 + kernels.checksum(tensor.detach().cpu().contiguous().view(torch.uint8))
    return digest


def _dense(tensor: Tensor) -> list[Tensor]:
    """A sparse gradient's indices and values; a dense gradient itself."""
    if not tensor.is_sparse:
        return [tensor]
    whole = tensor.coalesce()
    return [whole.indices(), whole.values()]
