"""Control channel: small messages between members, separate from gradient frames.

Each message is a reliable transfer with its own tag. One receive per peer is always posted, without a deadline, so a
lost peer is detected at once even when no data is expected from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

import torch
from torch import Tensor

from gradwire.errors import IntegrityError, LinkError
from gradwire.plan.membership.control_messages import ControlMessage, pack, unpack
from gradwire.plan.membership.messages import Message
from gradwire.transport.wires.base import Delivery
from gradwire.tree.frame_header import CONTROL
from gradwire.tree.frame_io import FrameIO

# Largest message: a plan of thirty trees over twenty members takes about a tenth of it.
MAX_BYTES: Final = 256 << 10
M = TypeVar("M")


class ControlChannel:
    """One member's messages to and from its peers. Runs on the executor's thread."""

    def __init__(self, frame_io: FrameIO) -> None:
        self.frame_io = frame_io
        self._handlers: dict[type, Callable[[int, Any], None]] = {}
        self._sent: Counter[int] = Counter()
        self._received: Counter[int] = Counter()

    def subscribe(self, kind: type[M], handler: Callable[[int, M], None]) -> None:
        """Call `handler(sender, message)` for each message of this type."""
        self._handlers[kind] = handler

    def listen(self, peers: Iterable[int]) -> None:
        for peer in peers:
            self._post_receive(peer)

    def restart(self, peer: int) -> None:
        """A new connection to this peer exists: both sides count messages from 1 again."""
        self._sent[peer] = self._received[peer] = 0
        self._post_receive(peer)

    def send(self, peer: int, message: Message | ControlMessage) -> None:
        data = pack(message)
        if len(data) > MAX_BYTES:
            raise LinkError(
                f"message to rank {peer}: {len(data)} bytes, at most {MAX_BYTES} fit; use a plan with fewer trees"
            )
        if peer in self.frame_io.left or peer in self.frame_io.disconnected:
            return
        frame = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        self._sent[peer] += 1
        # The transfer keeps a reference to the frame until it is done.
        self.frame_io.send(peer, _tag(self._sent[peer]), frame, data=False)

    def _post_receive(self, peer: int) -> None:
        self._received[peer] += 1

        def arrived(frame: Tensor, delivery: Delivery) -> None:
            message = unpack(bytes(frame[: delivery.size].numpy()))
            self.frame_io.release_buffer(frame)
            self._post_receive(peer)
            self.dispatch(peer, message)

        self.frame_io.post(peer, _tag(self._received[peer]), MAX_BYTES, arrived, no_deadline=True)

    def dispatch(self, sender: int, message: ControlMessage) -> None:
        """Handle one received message."""
        handler = self._handlers.get(type(message))
        if handler is None:
            raise IntegrityError(
                f"rank {sender} sent {type(message).__name__}, which only elastic plans use; set planning.elastic to "
                "the same value on every rank"
            )
        handler(sender, message)


def _tag(number: int) -> int:
    return CONTROL << 60 | number
