"""Buffer pool: byte buffers that exchanges reuse, so that training allocates none after the first steps.

New memory costs a page fault per 4 KiB, which takes longer than the kernels. Sizes repeat from step to step, so buffers
are kept by exact size. With a lossless stage sizes vary: then a lease takes up to an eighth more, so that similar sizes
share a buffer and few are kept. A lease returns the buffers that it still holds when it ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch
from torch import Tensor


class BufferPool:
    """Free buffers by (device, size); shared by all threads of the pipeline."""

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
        """Drop the free buffers, when the level and therefore all sizes change."""
        with self._lock:
            self._free.clear()


class BufferLease:
    """The buffers of one exchange. Used by one thread at a time."""

    def __init__(self, pool: BufferPool, device: torch.device) -> None:
        self._pool = pool
        self._device = device
        self._held: dict[int, Tensor] = {}

    def take(self, nbytes: int, *, varies: bool = False) -> Tensor:
        """A flat buffer of bytes with any content; `varies`: the size differs from step to step."""
        buffer = self._pool.take(_rounded(nbytes) if varies else nbytes, self._device)
        self._held[buffer.data_ptr()] = buffer
        return buffer[:nbytes]

    def give(self, buffer: Tensor) -> None:
        """Return a buffer before the exchange ends; views of it must not be used any more."""
        self._pool.give(self._held.pop(buffer.data_ptr()))

    def keep(self, buffer: Tensor) -> Callable[[], None]:
        """Keep a buffer beyond the lease's end; call the result, once, when it is not used any more."""
        kept = self._held.pop(buffer.data_ptr())
        return lambda: self._pool.give(kept)

    def end(self) -> None:
        for buffer in self._held.values():
            self._pool.give(buffer)
        self._held.clear()


def _rounded(nbytes: int) -> int:
    """Rounded up to the next of eight sizes between two powers of two."""
    step = 1 << max(0, nbytes.bit_length() - 4)
    return -(-nbytes // step) * step
