"""Handing: everything that makes up a replica, from a member that has it to one that was away.

In: a description and tensors at one end, their sizes at the other. Out: the same bytes there. Pieces of 1 MiB, a few
at a time, reliable and authenticated as all frames are; each has the frame_io's deadline. Runs on the walker's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

import torch
from torch import Tensor

from gradwire.tree.frame_header import state_tag
from gradwire.tree.frame_io import FrameIO

PIECE: Final = 1 << 20
# Pieces under way at once: the next is on its way while the last is copied and acknowledged.
WINDOW: Final = 4


class TransferableState(Protocol):
    """What a replica consists of. Asked while the training thread waits for gradients, so nothing changes meanwhile."""

    def give(self, step: int) -> tuple[bytes, Sequence[Tensor]]:
        """A description and the tensors it speaks of; `step` is the one under way, as the session counts."""
        ...

    def take(self, header: bytes, body: Tensor) -> None:
        """Become what they describe; IntegrityError, before anything is changed, if that is another model's."""
        ...


class StateSender:
    """Sends one state to one peer."""

    def __init__(
        self, frame_io: FrameIO, peer: int, key: tuple[int, int], state: tuple[bytes, Sequence[Tensor]]
    ) -> None:
        header, tensors = state
        self._frame_io, self._peer, self._key = frame_io, peer, key
        self.header, self.body = len(header), sum(tensor.nbytes for tensor in tensors)
        self._frames = pieces(torch.frombuffer(bytearray(header), dtype=torch.uint8), tensors)
        self._sent = 0

    def begin(self) -> None:
        for _ in range(WINDOW):
            self._next()

    def _next(self) -> None:
        frame = next(self._frames, None)
        if frame is not None:
            self._sent += 1
            # The frame stays alive with the transfer, which the frame_io keeps until it is done.
            self._frame_io.send(self._peer, state_tag(*self._key, self._sent), frame, sent=lambda _: self._next())


class StateReceiver:
    """Receives one state; `done(header, body)` when all of it is there."""

    def __init__(
        self, frame_io: FrameIO, peer: int, key: tuple[int, int], done: Callable[[bytes, Tensor], None]
    ) -> None:
        self._frame_io, self._peer, self._key, self._done = frame_io, peer, key, done
        self._header = 0
        self._bytes = torch.empty(0, dtype=torch.uint8)
        self._asked = self._came = 0

    def begin(self, header: int, body: int) -> None:
        self._header, self._bytes = header, torch.empty(header + body, dtype=torch.uint8)
        for _ in range(WINDOW):
            self._next()

    def _next(self) -> None:
        start, whole = self._asked * PIECE, self._bytes.numel()
        if start >= whole:
            return
        self._asked += 1
        size = min(PIECE, whole - start)

        def arrived(frame: Tensor, _: object) -> None:
            self._bytes[start : start + size].copy_(frame)
            self._frame_io.release_buffer(frame)
            self._came += size
            self._next()
            if self._came == whole:
                self._done(bytes(self._bytes[: self._header].numpy()), self._bytes[self._header :])

        self._frame_io.post(self._peer, state_tag(*self._key, self._asked), size, arrived)


def pieces(header: Tensor, tensors: Sequence[Tensor]) -> Iterator[Tensor]:
    """The bytes of all of them in frames of one length, the last perhaps shorter; one tensor at a time is copied."""
    waiting, held = [], 0
    for tensor in (header, *tensors):
        flat = tensor.detach().reshape(-1).cpu().contiguous().view(torch.uint8)
        start = 0
        while start < flat.numel():
            part = flat[start : start + PIECE - held]
            waiting.append(part)
            held += part.numel()
            start += part.numel()
            if held == PIECE:
                yield torch.cat(waiting)
                waiting, held = [], 0
    if held:
        yield torch.cat(waiting)
