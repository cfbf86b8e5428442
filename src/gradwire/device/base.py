"""Device: the interface of what gradwire uses of a GPU: streams, events, pinned memory, futures with stream order.

Work on a device is asynchronous. A stream runs its own work in order; between two streams, and between a stream and the
host, only events order anything:

    stream.launch(work)       later, after everything launched on this stream before
    stream.record_event()     an event that is done when everything launched on the stream so far is
    stream.wait_event(event)  later work of this stream begins after the event
    event.synchronize()       the calling thread waits; never called on the training thread

`cuda.py` is the real one. `tests/device/simulated.py` runs work as late as events allow, so that a missing wait fails a
test.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

import torch
from torch import Tensor
from torch.futures import Future


class DeviceEvent(Protocol):
    """A point in a stream."""

    def query(self) -> bool:
        """Whether the stream has passed it. Never waits."""
        ...

    def synchronize(self) -> None:
        """Wait, on the host, until the stream has passed it."""
        ...


class DeviceStream(Protocol):
    """A queue of work on the device."""

    def launch(self, operation: Callable[[], object]) -> None:
        """Queue what the operation does with tensors of the device. If it waits for this stream, so does the caller; it
        must not wait for another."""
        ...

    def current(self) -> AbstractContextManager[object]:
        """Within it, torch's operations in the calling thread use this stream, and what waits for them waits for it."""
        ...

    def wait_event(self, event: DeviceEvent) -> None: ...

    def record_event(self) -> DeviceEvent: ...


class Device(Protocol):
    """One device; hashable and equal to another object for the same one."""

    def current_stream(self) -> DeviceStream:
        """The stream that torch's operations use in the calling thread."""
        ...

    def new_stream(self, name: str) -> DeviceStream:
        """A stream that is ordered with no other."""
        ...

    def empty(self, numel: int, dtype: torch.dtype, stream: DeviceStream) -> Tensor:
        """Device memory with any content, for work of this stream. Keep it until that is done."""
        ...

    def pinned(self, nbytes: int) -> Tensor:
        """Bytes of host memory that the device copies from and to without a detour."""
        ...

    def future(self) -> Future[Tensor]:
        """A future for a tensor of this device: whoever waits for it has its current stream wait for the stream that
        completed it."""
        ...

    def complete(self, future: Future[Tensor], result: Tensor, stream: DeviceStream) -> None:
        """Set the result, which is valid when the stream has done what was launched so far."""
        ...


# The device of a tensor; None for host memory.
FindDevice = Callable[[Tensor], Device | None]
