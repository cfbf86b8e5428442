"""Scratch: byte buffers that exchanges borrow and give back, so that steady training allocates nothing.

Fresh memory costs a page fault per 4 KiB, which is more than the kernels need. Sizes repeat from step to step, so
buffers are kept by exact size. Where a lossless stage decides, sizes vary: then a lease takes up to an eighth more, so
that near sizes share a buffer and few are kept. It gives back what it still holds when it ends.
"""

from __future__ import annotations

import threading

import torch
from torch import Tensor


class BufferPool:
    """Free buffers by (device, size); shared by all stations."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: dict[tuple[torch.device, int], list[Tensor]] = {}

    def take(self, nbytes: int, device: torch.device) -> Tensor:
        with self._lock:
            free = self._free.get((device, nbytes))
            if free:
                return free.pop()
        return torch.empty(nbytes, dtype=torch.uint8, device=device)

    def give(self, buffer: Tensor) -> None:
        with self._lock:
            self._free.setdefault((buffer.device, buffer.numel()), []).append(buffer)

    def clear(self) -> None:
        """Forget the free buffers, when the level and with it all sizes change."""
        with self._lock:
            self._free.clear()


class BufferLease:
    """What one exchange borrowed. Used by one thread at a time."""

    def __init__(self, scratch: BufferPool, device: torch.device) -> None:
        self._scratch = scratch
        self._device = device
        self._held: dict[int, Tensor] = {}

    def take(self, nbytes: int, *, varies: bool = False) -> Tensor:
        """A flat buffer of bytes with any content; `varies` says that the next step asks for another size."""
        buffer = self._scratch.take(_rounded(nbytes) if varies else nbytes, self._device)
        self._held[buffer.data_ptr()] = buffer
        return buffer[:nbytes]

    def give(self, buffer: Tensor) -> None:
        """Give one back before the exchange ends; views of it must not be used any more."""
        self._scratch.give(self._held.pop(buffer.data_ptr()))

    def end(self) -> None:
        for buffer in self._held.values():
            self._scratch.give(buffer)
        self._held.clear()


def _rounded(nbytes: int) -> int:
    """Up to the next of eight sizes between two powers of two."""
    step = 1 << max(0, nbytes.bit_length() - 4)
    return -(-nbytes // step) * step
