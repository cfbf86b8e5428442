"""Verify: compares a hash of every rank's restored gradients by one small all-reduce."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from gradwire.compress import kernels
from gradwire.errors import IntegrityError
from gradwire.transport.lanes.base import AllReduce, Op


def verify(restored: list[Tensor], step: int) -> Iterator[Op]:
    """1. hash what was restored, 2. take the maximum of the hash and of its negative, 3. they must cancel."""
    digest = digest_of(restored)  # 1
    both = torch.tensor([digest, -digest], dtype=torch.int64, device=restored[0].device if restored else None)
    yield AllReduce(both, maximum=True)  # 2
    if int(both[0]) != -int(both[1]):  # 3
        raise IntegrityError(
            f"replicas differ after step {step}: ranks restored different gradients; restart from a checkpoint"
        )


def digest_of(restored: list[Tensor]) -> int:
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
