"""Device memory: the stream, copies and scratch memory of each thread that encodes on a device.

A thread of the pipeline has a stream of its own, in whose order it copies and launches. What passes from one thread to
the next is a frame in host memory, for which the thread has waited: so no stream waits for another within an exchange.
"""

from __future__ import annotations

import threading
from typing import Final

import torch
from torch import Tensor

from gradwire.device.base import Device, DeviceEvent, DeviceStream
from gradwire.device.pinned_copy import Download, Upload

# Bytes of a pinned slot; a thread has four. A chunk's frames are a few megabytes. Chosen, not measured.
FRAME_SLOT: Final = 2 << 20


class ThreadMemory:
    """Used by one thread. Memory is kept by purpose, in the largest size that was asked for; it may be used again when
    the thread has launched what uses it, because that is in the stream's order."""

    def __init__(self, device: Device, slot: int) -> None:
        self._device = device
        self._kept: dict[str, Tensor] = {}
        self.stream: DeviceStream = device.new_stream("encode")
        self._download, self._upload = Download(device, slot, self.stream), Upload(device, slot, self.stream)

    def take(self, purpose: str, nbytes: int) -> Tensor:
        """Bytes of any content."""
        known = self._kept.get(purpose)
        if known is None or known.numel() < nbytes:
            known = self._kept[purpose] = self._device.empty(-(-nbytes // 256) * 256, torch.uint8, self.stream)
        return known[:nbytes]

    def zeros(self, numel: int, dtype: torch.dtype) -> Tensor:
        """New memory, zero for what is launched later."""
        made = self._device.empty(numel, dtype, self.stream)
        self.stream.launch(made.zero_)
        return made

    def values(self, numel: int) -> Tensor:
        return self.take("values", 4 * numel).view(torch.float32)

    def to_host(self, source: Tensor, target: Tensor) -> None:
        """Returns when host memory has the values."""
        self._download.copy(source, target, self.stream.record_event())

    def to_device(self, source: Tensor, target: Tensor) -> None:
        """Returns when `source` may be changed."""
        self._upload.copy(source, target)

    def record_event(self) -> DeviceEvent:
        return self.stream.record_event()


class DeviceMemory:
    """One `ThreadMemory` for each thread that asks."""

    def __init__(self, device: Device, slot: int = FRAME_SLOT) -> None:
        self._device = device
        self._slot = slot
        self._own = threading.local()

    def mine(self) -> ThreadMemory:
        if not hasattr(self._own, "memory"):
            self._own.memory = ThreadMemory(self._device, self._slot)
        memory: ThreadMemory = self._own.memory
        return memory
