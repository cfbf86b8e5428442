"""Peer group: the ranks of one group on a wire, its message buffers, and the notice that the group has failed.

In: group ranks and tensors. Out: transfers. A rank whose operation fails sends a notice to every other member; they
read it while they wait, so that all of them raise the same message instead of each its own timeout.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

import torch
from torch import Tensor

from gradwire.backend import tags
from gradwire.backend.buffers import MessageBuffer, MessageBuffers
from gradwire.backend.errors import CollectiveError
from gradwire.errors import LinkError
from gradwire.transport.wires.base import Transfer, Wire

_NOTICE_BYTES: Final = 1024
# Seconds that a closing group waits for its last small messages to be acknowledged.
_LINGER: Final = 5.0
# A failing member sends its notice before it cancels transfers; over LTP the notice may arrive this many seconds later.
_NOTICE_WAIT: Final = 1.0


class PeerGroup:
    """`number` is the group's in tags; `rank` and `peers` are ranks of the group, `members` their ranks on the wire."""

    def __init__(self, wire: Wire, number: int, rank: int, members: Sequence[int]) -> None:
        self.wire, self.number, self.rank = wire, number, rank
        self.members = tuple(members)
        self.size = len(members)
        # Every rank starts with a different peer, so that not all send to the same one first.
        self.peers = tuple((rank + shift) % self.size for shift in range(1, self.size))
        self.buffers = MessageBuffers()
        self.failure: CollectiveError | None = None
        self._failing = threading.Lock()
        self._reclaiming = threading.Lock()
        self._unfinished: deque[tuple[list[Transfer], MessageBuffer]] = deque()
        self._notice_sends: list[Transfer] = []
        self._notices = {peer: self._post_notice(peer) for peer in self.peers}

    def send(self, peer: int, buffer: Tensor, tag: int) -> Transfer:
        return self.wire.send(self.members[peer], buffer, tag=tag)

    def post(self, peer: int, buffer: Tensor, tag: int) -> Transfer:
        return self.wire.post(self.members[peer], buffer, tag)

    def release_when_sent(self, transfers: list[Transfer], buffer: MessageBuffer) -> None:
        """No call waits for these sends; `buffer` is free once all are done."""
        self._unfinished.append((transfers, buffer))

    def reclaim(self) -> None:
        """Reuse the buffers whose sends are done, oldest first."""
        unfinished = self._unfinished
        with self._reclaiming:
            while unfinished and all(transfer.done for transfer in unfinished[0][0]):
                self.buffers.give(unfinished.popleft()[1])

    def check(self) -> None:
        """Raise the group's failure: this rank's own or one that another member sent."""
        if self.failure is None:
            self._read_notices()
        self.check_known()

    def check_after_loss(self) -> None:
        """The same where a peer cancelled or left: waits for its notice to arrive."""
        deadline = time.monotonic() + _NOTICE_WAIT
        while self.failure is None and time.monotonic() < deadline:
            self.check()
            time.sleep(0.005)
        self.check_known()

    def check_known(self) -> None:
        """The same for the start of an operation: only what this rank knows already."""
        if self.failure is not None:
            raise CollectiveError(str(self.failure))

    def check_alive(self, ranks: Iterable[int]) -> None:
        """LinkError when one of them is lost."""
        for rank in ranks:
            notice = self._notices.get(rank)
            if notice is not None and notice[0].done:
                notice[0].wait(0)

    def fail(self, reason: str) -> CollectiveError:
        """The group is unusable from now on; the first reason is kept and sent to the other members."""
        with self._failing:
            if self.failure is not None:
                return self.failure
            self.failure = CollectiveError(reason)
        text = reason.encode()[:_NOTICE_BYTES]
        buffer = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        for peer in self.peers:
            with contextlib.suppress(LinkError, ValueError, RuntimeError):
                self._notice_sends.append(self.send(peer, buffer, tags.notice(self.number)))
        return self.failure

    def close(self, linger: float = _LINGER) -> None:
        """Wait for the last sends, cancel the posted receives."""
        deadline = time.monotonic() + linger
        for transfer in [one for sends, _ in self._unfinished for one in sends] + self._notice_sends:
            with contextlib.suppress(LinkError, TimeoutError):
                transfer.wait(max(0.0, deadline - time.monotonic()))
        self._unfinished.clear()
        for transfer, _ in self._notices.values():
            cancel_transfer(transfer)

    def _post_notice(self, peer: int) -> tuple[Transfer, Tensor]:
        buffer = torch.empty(_NOTICE_BYTES, dtype=torch.uint8)
        return self.post(peer, buffer, tags.notice(self.number)), buffer

    def _read_notices(self) -> None:
        for transfer, buffer in self._notices.values():
            if not transfer.done:
                continue
            with contextlib.suppress(LinkError):  # a lost peer sent no notice
                size = transfer.wait(0).size
                self.failure = CollectiveError(bytes(buffer[:size].numpy()).decode(errors="replace"))
                return


def cancel_transfer(transfer: Transfer) -> None:
    """Cancel it, whatever state it is in: afterwards its buffer is not used any more."""
    with contextlib.suppress(LinkError, ValueError, RuntimeError):
        if not transfer.done:
            transfer.cancel()
