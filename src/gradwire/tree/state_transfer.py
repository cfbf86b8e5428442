"""State transfer: sends the full state of a replica to a member that rejoins.

In: a description and tensors at the sender, their sizes at the receiver. Out: the same bytes at the receiver. Frames of
1 MiB, a few in flight, reliable and authenticated like all frames, with FrameIO's timeout. Runs on the executor's
thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

import torch
from torch import Tensor

from gradwire.tree.frame_header import state_tag
from gradwire.tree.frame_io import FrameIO

FRAME: Final = 1 << 20
# Frames in flight: the next are sent while the last is copied and acknowledged.
WINDOW: Final = 4


class TransferableState(Protocol):
    """The state of a replica. Called while the training thread waits for gradients, so it does not change."""

    def save(self, step: int) -> tuple[bytes, Sequence[Tensor]]:
        """A description and the tensors; `step` is the current one, as the session counts."""
        ...

    def load(self, header: bytes, body: Tensor) -> None:
        """Load this state; IntegrityError, before anything is changed, if it does not fit the model."""
        ...


class StateSender:
    """Sends one state to one peer."""

    def __init__(
        self, frame_io: FrameIO, peer: int, transfer_id: tuple[int, int], state: tuple[bytes, Sequence[Tensor]]
    ) -> None:
        header, tensors = state
        self._frame_io, self._peer, self._transfer_id = frame_io, peer, transfer_id
        self.header, self.body = len(header), sum(tensor.nbytes for tensor in tensors)
        self._frames = frames_of(torch.frombuffer(bytearray(header), dtype=torch.uint8), tensors)
        self._sent = 0

    def begin(self) -> None:
        for _ in range(WINDOW):
            self._next()

    def _next(self) -> None:
        frame = next(self._frames, None)
        if frame is not None:
            self._sent += 1
            # The transfer keeps a reference to the frame until it is done.
            self._frame_io.send(
                self._peer, state_tag(*self._transfer_id, self._sent), frame, sent=lambda _: self._next()
            )


class StateReceiver:
    """Receives one state; calls `done(header, body)` when all bytes arrived."""

    def __init__(
        self, frame_io: FrameIO, peer: int, transfer_id: tuple[int, int], done: Callable[[bytes, Tensor], None]
    ) -> None:
        self._frame_io, self._peer, self._transfer_id, self._done = frame_io, peer, transfer_id, done
        self._header = 0
        self._bytes = torch.empty(0, dtype=torch.uint8)
        self._posted = self._received = 0

    def begin(self, header: int, body: int) -> None:
        self._header, self._bytes = header, torch.empty(header + body, dtype=torch.uint8)
        for _ in range(WINDOW):
            self._next()

    def _next(self) -> None:
        start, total = self._posted * FRAME, self._bytes.numel()
        if start >= total:
            return
        self._posted += 1
        size = min(FRAME, total - start)

        def arrived(frame: Tensor, _: object) -> None:
            self._bytes[start : start + size].copy_(frame)
            self._frame_io.release_buffer(frame)
            self._received += size
            self._next()
            if self._received == total:
                self._done(bytes(self._bytes[: self._header].numpy()), self._bytes[self._header :])

        self._frame_io.post(self._peer, state_tag(*self._transfer_id, self._posted), size, arrived)


def frames_of(header: Tensor, tensors: Sequence[Tensor]) -> Iterator[Tensor]:
    """All bytes in frames of FRAME bytes, the last one maybe shorter; copies one tensor at a time."""
    waiting, held = [], 0
    for tensor in (header, *tensors):
        flat = tensor.detach().reshape(-1).cpu().contiguous().view(torch.uint8)
        start = 0
        while start < flat.numel():
            part = flat[start : start + FRAME - held]
            waiting.append(part)
            held += part.numel()
            start += part.numel()
            if held == FRAME:
                yield torch.cat(waiting)
                waiting, held = [], 0
    if held:
        yield torch.cat(waiting)
