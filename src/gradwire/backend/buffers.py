"""Buffers: reused memory for small messages and for sums, so that no operation pays for page faults.

Not `exchange/buffer_pool.py`: that keeps every tensor by exact size and device for leases; here are message buffers of
one fixed size and at most two large CPU buffers, taken by any size up to theirs.
"""

from __future__ import annotations

import threading
from typing import Final

import torch
from torch import Tensor

from gradwire.backend.call import HEADER

# A payload up to this many bytes is sent inside the opening message, together with the header.
INLINE: Final = 32 << 10
# Large scratch buffers that are kept.
_SCRATCHES_KEPT: Final = 2


class MessageBuffer:
    """One small message: `memory` is sent, `head` is its header, `body` its payload."""

    __slots__ = ("body", "head", "memory")

    def __init__(self) -> None:
        self.memory = torch.empty(HEADER + INLINE, dtype=torch.uint8)
        self.head = self.memory.numpy().data[:HEADER]
        self.body = self.memory[HEADER:]

    def filled(self, nbytes: int) -> Tensor:
        """The message with a payload of `nbytes`."""
        return self.memory[: HEADER + nbytes]

    def view(self, like: Tensor) -> Tensor:
        """The payload, seen as a flat tensor like `like`."""
        return self.body[: like.nbytes].view(like.dtype)


class MessageBuffers:
    """A pool of message buffers and of large scratch buffers, for any thread."""

    def __init__(self) -> None:
        self._free: list[MessageBuffer] = []
        self._scratches: list[Tensor] = []
        self._lock = threading.Lock()

    def take(self) -> MessageBuffer:
        try:
            return self._free.pop()
        except IndexError:
            return MessageBuffer()

    def give(self, buffer: MessageBuffer) -> None:
        self._free.append(buffer)

    def take_scratch(self, count: int, dtype: torch.dtype) -> Tensor:
        """A flat buffer of `count` elements with unknown contents."""
        nbytes = count * dtype.itemsize
        with self._lock:
            for index, held in enumerate(self._scratches):
                if held.nbytes >= nbytes:
                    return self._scratches.pop(index)[:nbytes].view(dtype)
        return torch.empty(max(nbytes, 1), dtype=torch.uint8)[:nbytes].view(dtype)

    def give_scratch(self, scratch: Tensor) -> None:
        whole = scratch.new_empty(0, dtype=torch.uint8).set_(scratch.untyped_storage())
        with self._lock:
            self._scratches = sorted([*self._scratches, whole], key=lambda held: -held.nbytes)[:_SCRATCHES_KEPT]
