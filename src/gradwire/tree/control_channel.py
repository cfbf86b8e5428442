"""Channel: small messages between members, beside the gradients and never in their way.

Each is a reliable transfer with a tag of its own; one receive per peer always waits, without a deadline. So a lost peer
is heard of at once by everybody, whether or not its data is being waited for.
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

# Room for one message: a plan of thirty trees over twenty members takes about a tenth of it.
MOST: Final = 256 << 10
OnMessage = Callable[[int, ControlMessage], None]


class ControlChannel:
    """One member's messages to and from its peers. Runs on the walker's thread."""

    def __init__(self, frame_io: FrameIO, on_message: OnMessage) -> None:
        self._frame_io, self._on_message = frame_io, on_message
        self._sent: Counter[int] = Counter()
        self._received: Counter[int] = Counter()

    def listen(self, peers: Iterable[int]) -> None:
        for peer in peers:
            self._await(peer)

    def restart(self, peer: int) -> None:
        """There is a new connection to this peer: what was said over the old one is past, on both sides."""
        self._sent[peer] = self._received[peer] = 0
        self._await(peer)

    def send(self, peer: int, message: Message | ControlMessage) -> None:
        data = pack(message)
        if len(data) > MOST:
            raise LinkError(
                f"a message of {len(data)} bytes is too long for rank {peer}; plans this large need fewer trees"
            )
        if peer in self._frame_io.left or peer in self._frame_io.disconnected:
            return
        frame = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        self._sent[peer] += 1
        # The frame stays alive with the transfer, which the frame_io keeps until it is done.
        self._frame_io.send(peer, _tag(self._sent[peer]), frame, data=False)

    def _await(self, peer: int) -> None:
        self._received[peer] += 1

        def arrived(frame: Tensor, delivery: Delivery) -> None:
            message = unpack(bytes(frame[: delivery.size].numpy()))
            self._frame_io.release_buffer(frame)
            self._await(peer)
            self._on_message(peer, message)

        self._frame_io.post(peer, _tag(self._received[peer]), MOST, arrived, no_deadline=True)


def _tag(number: int) -> int:
    return CONTROL << 60 | number
