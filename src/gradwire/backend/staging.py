"""Staging: turns torch's tensors into flat CPU memory, and copies results back.

A contiguous CPU tensor is used in place. Any other tensor (strided, on a GPU) is copied; a GPU tensor through pinned
memory.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.errors import ConfigError


class Staging:
    """The tensors of one operation."""

    def __init__(self) -> None:
        self._copies: list[tuple[Tensor, Tensor]] = []

    def read(self, tensor: Tensor) -> Tensor:
        """A flat tensor with the values of `tensor`."""
        if tensor.layout != torch.strided:
            raise ConfigError(f"tensor: this operation takes dense tensors, not {tensor.layout}")
        if _usable(tensor):
            return tensor.detach().view(-1)
        flat = _blank(tensor)
        flat.view(tensor.shape).copy_(tensor.detach())
        return flat

    def write(self, tensor: Tensor, *, read: bool = False) -> Tensor:
        """A flat tensor that `copy_back` writes to `tensor`; with `read` it has the tensor's values now."""
        if _usable(tensor):
            return tensor.detach().view(-1)
        flat = self.read(tensor) if read else _blank(tensor)
        self._copies.append((tensor.detach(), flat))
        return flat

    def copy_back(self) -> None:
        """The operation is complete: copy results to their tensors."""
        for tensor, flat in self._copies:
            tensor.copy_(flat.view(tensor.shape))


class StagedList:
    """Staging for many tensors that are sent as one."""

    def __init__(self, flat: Tensor, tensors: list[Tensor]) -> None:
        self._flat = flat
        self._tensors = tensors

    def copy_back(self) -> None:
        parts = self._flat.split([tensor.numel() for tensor in self._tensors])
        for tensor, part in zip(self._tensors, parts, strict=True):
            tensor.detach().copy_(part.view(tensor.shape))


def _usable(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def _blank(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.numel(), dtype=tensor.dtype, pin_memory=tensor.is_cuda)
