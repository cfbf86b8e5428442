"""CUDA (and ROCm, which torch calls by the same names): the interface of `base.py` over torch.cuda."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.futures import Future

from gradwire.device.base import Device, DeviceEvent, DeviceStream
from gradwire.errors import ConfigError


@dataclass(frozen=True, slots=True)
class CudaStream:
    """`stream` is a torch.cuda.Stream; its events are torch's own, which have the interface of DeviceEvent."""

    stream: Any

    def launch(self, operation: Callable[[], object]) -> None:
        with self.current():
            operation()

    def current(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self.stream)

    def wait_event(self, event: DeviceEvent) -> None:
        self.stream.wait_event(event)

    def record_event(self) -> DeviceEvent:
        event = torch.cuda.Event(blocking=True)  # a thread that waits sleeps: the host's cores belong to training
        event.record(self.stream)
        return event


@dataclass(frozen=True, slots=True)
class CudaDevice:
    device: torch.device

    def current_stream(self) -> CudaStream:
        return CudaStream(torch.cuda.current_stream(self.device))

    def new_stream(self, name: str) -> CudaStream:
        return CudaStream(torch.cuda.Stream(self.device))

    def empty(self, numel: int, dtype: torch.dtype, stream: DeviceStream) -> Tensor:
        # torch gives freed memory out again in the order of the stream that it was allocated on.
        found: list[Tensor] = []
        stream.launch(lambda: found.append(torch.empty(numel, dtype=dtype, device=self.device)))
        return found[0]

    def pinned(self, nbytes: int) -> Tensor:
        # A thread's device is 0 unless it says so; pinning there would make a context on another rank's GPU.
        with torch.cuda.device(self.device):
            return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def future(self) -> Future[Tensor]:
        return Future(devices=[self.device])

    def complete(self, future: Future[Tensor], result: Tensor, stream: DeviceStream) -> None:
        stream.launch(lambda: future.set_result(result))  # torch records an event of the current stream


def find_device(tensor: Tensor) -> Device | None:
    """The device of a tensor; None for host memory, and for a device that gradwire does not know."""
    return CudaDevice(tensor.device) if tensor.device.type == "cuda" else None


def require_known(tensor: Tensor) -> None:
    """ConfigError for a gradient that cannot be copied to the host: it is on a device that gradwire does not know."""
    if tensor.device.type not in ("cpu", "cuda"):
        raise ConfigError(
            f"attach: gradients are on {tensor.device}; gradwire takes those of cpu and cuda devices: move the model "
            'to one, or use level = "off" over the process group'
        )


def completed_future(result: Tensor) -> Future[Tensor]:
    """A future that is done; valid after what the calling thread launched so far."""
    require_known(result)
    device = find_device(result)
    if device is None:
        future: Future[Tensor] = Future()
        future.set_result(result)
        return future
    future = device.future()
    device.complete(future, result, device.current_stream())
    return future
