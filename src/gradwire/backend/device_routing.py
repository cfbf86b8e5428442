"""Device routing: chooses the backend of a group's tensors by their device.

CPU tensors go over gradwire's wires. CUDA tensors go to NCCL where torch has it: a backend of the same ranks,
registered on the same group, created with the first CUDA tensor, so that a job without CUDA tensors never starts it. A
map such as `cpu:gradwire,cuda:gloo` or the variable GRADWIRE_CUDA selects another one; `gradwire` copies through host
memory.
"""

# torch's stubs say that these answers come from C++ objects.
# mypy: disable-error-code="override"

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore

from gradwire.backend.cpu_backend import CPU, CpuBackend
from gradwire.errors import ConfigError

VARIABLE: Final = "GRADWIRE_CUDA"
CUDA: Final = torch.device("cuda")
_CHOICES: Final = ("nccl", "gloo", "gradwire")
_ALL_RANKS_FIRST: Final = (
    "cuda:gloo: gloo connects all ranks of a group in their first collective of a CUDA tensor; call one on every rank "
    'before the first send or receive: dist.all_reduce(torch.zeros(1, device="cuda"))'
)


def device_type(tensor: Tensor | None) -> str:
    """The device type of a call; "cpu" for a call without tensors."""
    return "cpu" if tensor is None else tensor.device.type


class CudaBackend:
    """The backend of a group's CUDA tensors. `number` is the group's among all of the job, so that parts of the same
    name never read each other's keys; `given` are the options of the caller of `init_process_group`."""

    def __init__(self, group: CpuBackend, number: int, given: object) -> None:
        # The group holds this object; a reference back would keep a destroyed group until the next collection.
        self._owner = weakref.ref(group)
        self._number = number
        self._given = given
        self._lock = threading.Lock()
        self._inner: Any = None

    @property
    def made(self) -> bool:
        return self._inner is not None

    @property
    def _group(self) -> CpuBackend:
        group = self._owner()
        if group is None:
            raise ConfigError("cuda: this process group was destroyed")
        return group

    def choice(self) -> str | None:
        """nccl, gloo or gradwire; None where the group has no CUDA backend."""
        if not torch.cuda.is_available():
            return None
        named = _named_backend(self._group)
        if ":" in named:
            devices = dict(pair.split(":") for pair in named.split(","))
            return _known(devices["cuda"], named) if "cuda" in devices else None
        chosen = os.environ.get(VARIABLE, "").lower()
        return _known(chosen, VARIABLE) if chosen else "nccl" if dist.is_nccl_available() else "gradwire"

    def inner(self, *, all_ranks: bool = True) -> Any:
        """The torch group with the backend; None where gradwire serves CUDA tensors too. `all_ranks`: every rank of the
        group makes this call (gloo's constructor waits for all of them)."""
        if self._inner is None:
            with self._lock:
                choice = self.choice()
                if self._inner is None and choice == "gloo" and not all_ranks:
                    raise ConfigError(_ALL_RANKS_FIRST)
                if self._inner is None and choice not in (None, "gradwire"):
                    self._inner = self._make(str(choice))
        return self._inner

    def set_timeout(self, timeout: Any) -> None:
        if self._inner is not None:
            _first_of(self._inner, "set_timeout", "_set_default_timeout")(timeout)

    def end(self, *, abort: bool) -> None:
        if self._inner is not None:
            _first_of(self._inner, *(("abort", "_abort") if abort else ("shutdown", "_shutdown")))()
            self._inner = None

    def _make(self, choice: str) -> Any:
        store, options = PrefixStore(f"cuda/{self._number}/", self._group.get_group_store()), self._group.options
        rank, size = self._group.rank(), self._group.size()
        backend = _backend(choice, store, rank, size, options, self._given)
        backend._set_sequence_number_for_group()
        kind = getattr(dist.ProcessGroup.BackendType, choice.upper())
        inner = dist.ProcessGroup(store, rank, size)
        inner._set_default_backend(kind)
        inner._register_backend(CUDA, kind, backend)
        if choice == "gloo":
            inner._register_backend(CPU, kind, backend)
        inner._set_group_name(self._group.group_name)  # type: ignore[arg-type]
        inner._set_group_desc(self._group.group_desc)
        # For what torch's C++ calls on the group itself.
        self._group._register_backend(CUDA, kind, backend)
        return inner


class DeviceRoutedGroup(CpuBackend):
    """A group whose calls go to the backend of their tensors' device."""

    cuda: CudaBackend

    @property
    def _device_types(self) -> list[torch.device]:
        return [CPU, CUDA] if self.cuda.choice() else [CPU]

    def _get_backend(self, device: torch.device) -> Any:
        other = self.other_backend(device)
        return super()._get_backend(device) if other is None else other._get_backend(CUDA)

    def backend_for(self, tensor: Tensor | None, *, all_ranks: bool = True) -> Any:
        return self.cuda.inner(all_ranks=all_ranks) if device_type(tensor) == "cuda" else None

    def other_backend(self, device: torch.device | None) -> Any:
        """The backend of a device; None where that is this group."""
        return self.cuda.inner() if device is not None and torch.device(device).type == "cuda" else None


def _first_of(inner: Any, *names: str) -> Callable[..., object]:
    """The first method that exists on the group or, before torch 2.6, on its backend; a no-op where neither has one
    (gloo then has no shutdown)."""
    owners = (inner, inner._get_backend(CUDA))
    found = (getattr(owner, name, None) for owner in owners for name in names)
    return next((method for method in found if method is not None), lambda *_: None)


def _backend(choice: str, store: Any, rank: int, size: int, options: Any, given: object) -> Any:
    if choice == "gloo":
        return dist.ProcessGroupGloo(store, rank, size, timeout=options._timeout)
    if not dist.is_nccl_available():
        raise ConfigError(f"cuda:nccl: this torch has no NCCL; set {VARIABLE}=gradwire to copy through host memory")
    nccl: Any = dist.ProcessGroupNCCL  # type: ignore[attr-defined, unused-ignore]
    chosen = given if isinstance(given, nccl.Options) else nccl.Options()
    chosen._timeout = options._timeout
    chosen.global_ranks_in_group = options.global_ranks_in_group
    chosen.group_name = options.group_name
    return nccl(store, rank, size, chosen)


def _named_backend(group: CpuBackend) -> str:
    """The backend given to `init_process_group` or `new_group`; torch does not know groups made by `split_group`."""
    try:
        return str(dist.get_backend(group))
    except ValueError:
        return group.BACKEND


def _known(choice: str, where: str) -> str:
    if choice not in _CHOICES:
        raise ConfigError(
            f"{where}: {choice!r} cannot serve a gradwire group's CUDA tensors; choose one of {', '.join(_CHOICES)}"
        )
    return choice
