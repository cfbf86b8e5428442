"""Control channel: small messages between members, separate from gradient frames.

Each message is a reliable transfer with its own tag. One receive per peer is always posted, without a deadline, so a
lost peer is detected at once even when no data is expected from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

import torch
from torch import Tensor

from gradwire.errors import LinkError
from gradwire.plan.membership.control_messages import ControlMessage, pack, unpack
from gradwire.plan.membership.messages import Message
from gradwire.transport.wires.base import Delivery
from gradwire.tree.frame_header import CONTROL
from gradwire.tree.frame_io import FrameIO

# Largest message: a plan of thirty trees over twenty members takes about a tenth of it.
MAX_BYTES: Final = 256 << 10
OnMessage = Callable[[int, ControlMessage], None]


class ControlChannel:
    """One member's messages to and from its peers. Runs on the executor's thread."""

    def __init__(self, frame_io: FrameIO, on_message: OnMessage) -> None:
        self._frame_io, self._on_message = frame_io, on_message
        self._sent: Counter[int] = Counter()
        self._received: Counter[int] = Counter()

    def listen(self, peers: Iterable[int]) -> None:
        for peer in peers:
            self._await(peer)

    def restart(self, peer: int) -> None:
        """A new connection to this peer exists: both sides count messages from 1 again."""
        self._sent[peer] = self._received[peer] = 0
        self._await(peer)

    def send(self, peer: int, message: Message | ControlMessage) -> None:
        data = pack(message)
        if len(data) > MAX_BYTES:
            raise LinkError(
                f"message to rank {peer}: {len(data)} bytes, at most {MAX_BYTES} fit; use a plan with fewer trees"
            )
        if peer in self._frame_io.left or peer in self._frame_io.disconnected:
            return
        frame = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        self._sent[peer] += 1
        # The transfer keeps a reference to the frame until it is done.
        self._frame_io.send(peer, _tag(self._sent[peer]), frame, data=False)

    def _await(self, peer: int) -> None:
        self._received[peer] += 1

        def arrived(frame: Tensor, delivery: Delivery) -> None:
            message = unpack(bytes(frame[: delivery.size].numpy()))
            self._frame_io.release_buffer(frame)
            self._await(peer)
            self._on_message(peer, message)

        self._frame_io.post(peer, _tag(self._received[peer]), MAX_BYTES, arrived, no_deadline=True)


def _tag(number: int) -> int:
    return CONTROL << 60 | number
