"""Circle: the ranks of one group on a wire, the memory they share out, and the word that the group has failed.

In: group ranks and tensors. Out: transfers. A rank whose operation fails tells every other member once; each hears it
while it waits for something, so that all of them raise the same message instead of each its own timeout.
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
# How long a closing group waits for its last small messages to be acknowledged.
_LINGER: Final = 5.0
# A member that fails says why before it withdraws; over a wire without order the word may come this much later.
_WORD: Final = 1.0


class PeerGroup:
    """`rank` and peers are ranks of the group; `members` are their ranks on the wire."""

    def __init__(self, wire: Wire, group: int, rank: int, members: Sequence[int]) -> None:
        self.wire, self.group, self.rank = wire, group, rank
        self.members = tuple(members)
        self.size = len(members)
        # Every rank begins with another peer, so that not all send to the same one at once.
        self.peers = tuple((rank + shift) % self.size for shift in range(1, self.size))
        self.boxes = MessageBuffers()
        self.failure: CollectiveError | None = None
        self._told = threading.Lock()
        self._reaping = threading.Lock()
        self._trailing: deque[tuple[list[Transfer], MessageBuffer]] = deque()
        self._last_words: list[Transfer] = []
        self._notices = {peer: self._post_notice(peer) for peer in self.peers}

    def send(self, peer: int, buffer: Tensor, tag: int) -> Transfer:
        return self.wire.send(self.members[peer], buffer, tag=tag)

    def post(self, peer: int, buffer: Tensor, tag: int) -> Transfer:
        return self.wire.post(self.members[peer], buffer, tag)

    def trail(self, transfers: list[Transfer], box: MessageBuffer) -> None:
        """Nobody waits for these sends; their box is free once all are done."""
        self._trailing.append((transfers, box))

    def reap(self) -> None:
        """Take back the boxes whose sends are done, oldest first."""
        trailing = self._trailing
        with self._reaping:
            while trailing and all(transfer.done for transfer in trailing[0][0]):
                self.boxes.give(trailing.popleft()[1])

    def check(self) -> None:
        """Raise what has failed: this rank's own failure or one that another member told of."""
        if self.failure is None:
            self._hear()
        self.check_quickly()

    def check_patiently(self) -> None:
        """The same where a peer withdrew or left: gives its reason time to arrive."""
        deadline = time.monotonic() + _WORD
        while self.failure is None and time.monotonic() < deadline:
            self.check()
            time.sleep(0.005)
        self.check_quickly()

    def check_quickly(self) -> None:
        """The same for the start of an operation: what this rank knows already."""
        if self.failure is not None:
            raise CollectiveError(str(self.failure))

    def check_present(self, ranks: Iterable[int]) -> None:
        """LinkError when one of them is lost."""
        for rank in ranks:
            notice = self._notices.get(rank)
            if notice is not None and notice[0].done:
                notice[0].wait(0)

    def fail(self, reason: str) -> CollectiveError:
        """The group is unusable from now on; the first reason stays, and the others are told of it."""
        with self._told:
            if self.failure is not None:
                return self.failure
            self.failure = CollectiveError(reason)
        text = reason.encode()[:_NOTICE_BYTES]
        box = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        for peer in self.peers:
            with contextlib.suppress(LinkError, ValueError, RuntimeError):
                self._last_words.append(self.send(peer, box, tags.notice(self.group)))
        return self.failure

    def close(self, linger: float = _LINGER) -> None:
        """Wait for what was sent last, withdraw what was posted."""
        deadline = time.monotonic() + linger
        for transfer in [one for sends, _ in self._trailing for one in sends] + self._last_words:
            with contextlib.suppress(LinkError, TimeoutError):
                transfer.wait(max(0.0, deadline - time.monotonic()))
        self._trailing.clear()
        for transfer, _ in self._notices.values():
            withdraw(transfer)

    def _post_notice(self, peer: int) -> tuple[Transfer, Tensor]:
        box = torch.empty(_NOTICE_BYTES, dtype=torch.uint8)
        return self.post(peer, box, tags.notice(self.group)), box

    def _hear(self) -> None:
        for transfer, box in self._notices.values():
            if not transfer.done:
                continue
            with contextlib.suppress(LinkError):  # a peer that is gone says nothing
                size = transfer.wait(0).size
                self.failure = CollectiveError(bytes(box[:size].numpy()).decode(errors="replace"))
                return


def withdraw(transfer: Transfer) -> None:
    """Cancel, whatever state it is in: afterwards its buffer is left alone."""
    with contextlib.suppress(LinkError, ValueError, RuntimeError):
        if not transfer.done:
            transfer.cancel()
