"""CPU backend: a group that is its own backend for CPU tensors.

Torch keeps a backend for each device inside a group, looks it up by device and queries its abilities. A group written
in Python is both; here are the answers to those queries. They hold no algorithm.
"""

# torch's stubs say that these answers come from C++ objects.
# mypy: disable-error-code="override"

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store

from gradwire.backend.base_group import BaseGroup
from gradwire.errors import ConfigError

CPU = torch.device("cpu")


@dataclass
class GroupOptions:
    """What torch reads of a backend's options, and copies when it splits a group."""

    backend: str
    _timeout: timedelta
    global_ranks_in_group: list[int] = field(default_factory=list)
    group_name: str = ""


class CpuBackend(BaseGroup):
    """`options` is what torch hands to a backend's creator: store, rank, size, name, ranks and timeout."""

    supports_splitting = True
    # Every operation inside a coalescing window returns a work of its own, as gloo's do.
    supports_coalescing = False
    supports_time_estimate = False
    supports_shrinking = False

    def __init__(self, options: Any) -> None:
        super().__init__(options.group_rank, options.group_size, options.group_id or "")
        self._timeout: timedelta = options.timeout
        # The default group is made without its ranks.
        self.global_ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
        self._store: Store | None = options.store

    @property
    def options(self) -> GroupOptions:
        return GroupOptions(self.BACKEND, self._timeout, self.global_ranks, self.group_name)

    @property
    def _device_types(self) -> list[torch.device]:
        return [CPU]

    def _get_backend(self, device: torch.device) -> Any:
        if torch.device(device).type in {one.type for one in self._device_types}:
            return self
        raise RuntimeError(f"No backend type associated with device type {torch.device(device).type}")

    def backend_for(self, tensor: Tensor | None, *, all_ranks: bool = True) -> Any:
        """Another backend that serves this tensor's device; None where this group does. `all_ranks`: a collective."""
        return None

    def get_group_store(self) -> Store:
        """The store under the group's own name, without the part for the device that torch adds for a backend."""
        if self._store is None:
            raise ConfigError("get_group_store: this process group was destroyed")
        return self._store.underlying_store if isinstance(self._store, PrefixStore) else self._store

    def drop_store(self) -> None:
        """A destroyed group must not hold a store: torch aborts where one over a file outlives the file."""
        self._store = None

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        return False

    def eager_connect_single_device(self, device: torch.device | None = None) -> None:
        """Nothing to do: a group is connected when it is made."""

    def _set_sequence_number_for_group(self) -> None:
        """Nothing to do: every group counts its operations from 0."""

    def _get_backend_name(self) -> str:
        return self.BACKEND
