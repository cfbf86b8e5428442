"""Pinned copy: values between device memory and host memory, in pieces through two pinned slots a direction.

While the device copies one piece into (or out of) a slot, the host copies the piece before (or after) between the
other slot and the tensor in host memory. Pinned memory is four slots per device, whatever the size of a bucket: a slot
is held for a copy only, never for an exchange.

In: a flat tensor on the device and one of the same type and length in host memory. The calling thread waits for the
device, so it is never the training thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from torch import Tensor

from gradwire.device.base import Device, DeviceEvent, DeviceStream

# Bytes of a slot. PCIe reaches its rate with copies of about 1 MB; 8 MB leave few events per bucket, and the four slots
# together pin 32 MB. Chosen, not measured.
SLOT: Final = 8 << 20


class _Slots:
    """Two slots, made with the first copy and used in turn."""

    def __init__(self, device: Device, nbytes: int) -> None:
        self._device = device
        self._nbytes = nbytes
        self._slots: list[Tensor] = []
        self._next = 0

    def pieces(self, source: Tensor, target: Tensor) -> Iterator[tuple[int, Tensor, Tensor, Tensor]]:
        """A slot's number, the slot, and the pieces of both tensors that go through it."""
        if not self._slots:
            self._slots = [self._device.pinned(self._nbytes) for _ in range(2)]
        each = self._nbytes // source.element_size()
        for start in range(0, source.numel(), each):
            one, other = source[start : start + each], target[start : start + each]
            number, self._next = self._next, 1 - self._next
            yield number, self._slots[number][: one.nbytes].view(source.dtype), one, other


class Download:
    """From the device to host memory."""

    def __init__(self, device: Device, slot: int = SLOT, stream: DeviceStream | None = None) -> None:
        self._slots = _Slots(device, slot)
        self.stream = stream or device.new_stream("download")

    def copy(self, source: Tensor, target: Tensor, ready: DeviceEvent) -> None:
        """Returns when `target` has the values that `source` has at the event `ready`."""
        self.stream.wait_event(ready)
        before: tuple[DeviceEvent, Tensor, Tensor] | None = None
        for _, slot, piece, into in self._slots.pieces(source, target):
            self.stream.launch(partial(slot.copy_, piece, non_blocking=True))
            copying = self.stream.record_event(), slot, into
            _finish(before)  # the piece before, while this one is copied; then its slot is free
            before = copying
        _finish(before)


def _finish(copying: tuple[DeviceEvent, Tensor, Tensor] | None) -> None:
    if copying is not None:
        event, slot, into = copying
        event.synchronize()
        into.copy_(slot)


class Upload:
    """From host memory to the device, on `stream`: what is launched on it later sees the values."""

    def __init__(self, device: Device, slot: int = SLOT, stream: DeviceStream | None = None) -> None:
        self._slots = _Slots(device, slot)
        self._busy: dict[int, DeviceEvent] = {}
        self.stream = stream or device.new_stream("upload")

    def copy(self, source: Tensor, target: Tensor) -> None:
        """Returns when `source` may be changed; the last copies to the device may still run."""
        for number, slot, piece, into in self._slots.pieces(source, target):
            if number in self._busy:
                self._busy[number].synchronize()
            slot.copy_(piece)
            self.stream.launch(partial(into.copy_, slot, non_blocking=True))
            self._busy[number] = self.stream.record_event()
