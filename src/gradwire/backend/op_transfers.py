"""Op transfers: the transfers of one operation. Sends opening messages, checks the peers' calls, and moves the parts.

An algorithm is a generator over OpTransfers: it starts transfers, yields each one it needs, and is resumed with the
Delivery once that is done. It never blocks, so that one thread can run several operations.

The opening message to a peer is the header of the call; a payload of up to INLINE bytes is inside it. Everything else
follows as numbered parts.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping

from torch import Tensor

from gradwire.backend import tags
from gradwire.backend.buffers import INLINE, MessageBuffer
from gradwire.backend.call import HEADER, Call, unpack
from gradwire.backend.errors import CollectiveError
from gradwire.backend.peer_group import PeerGroup, cancel_transfer
from gradwire.transport.wires.base import Delivery, Transfer

Steps = Generator[Transfer, Delivery, None]


def arrivals(transfers: Iterable[Transfer]) -> Steps:
    """Waits for all of them, one after another."""
    for transfer in transfers:  # noqa: UP028  (a list's own iterator cannot be resumed with a Delivery)
        yield transfer


class OpTransfers:
    """The transfers of one operation; `number` is its position in the group's order."""

    def __init__(self, group: PeerGroup, call: Call, number: int) -> None:
        self.group, self.call, self.number = group, call, number
        self._transfers: list[Transfer] = []
        self._buffers: list[MessageBuffer] = []
        self._scratches: list[Tensor] = []

    def post(self, peer: int, buffer: Tensor, part: int) -> Transfer:
        transfer = self.group.post(peer, buffer, self._tag(part))
        self._transfers.append(transfer)
        return transfer

    def send(self, peer: int, buffer: Tensor, part: int) -> Transfer:
        transfer = self.group.send(peer, buffer, self._tag(part))
        self._transfers.append(transfer)
        return transfer

    def post_openings(self, peers: Iterable[int]) -> dict[int, tuple[Transfer, MessageBuffer]]:
        """Post receives for the opening messages of `peers`."""
        buffers = {peer: self.group.buffers.take() for peer in peers}
        self._buffers += buffers.values()
        return {peer: (self.post(peer, buffer.memory, 0), buffer) for peer, buffer in buffers.items()}

    def send_openings(self, peers: Iterable[int], flat: Tensor | None = None, nbytes: int | None = None) -> None:
        """Send the opening message to `peers`, with `flat` in it when it is small enough."""
        size = flat.nbytes if flat is not None else 0
        buffer = self.group.buffers.take()
        buffer.head[:] = self.call.pack(self.number, size if nbytes is None else nbytes)
        inside = size if size <= INLINE else 0
        if flat is not None and inside:
            buffer.view(flat).copy_(flat)
        message = buffer.filled(inside)
        self.group.release_when_sent([self.group.send(peer, message, self._tag(0)) for peer in peers], buffer)

    def check_opening(self, peer: int, buffer: MessageBuffer, delivery: Delivery, nbytes: int) -> None:
        """Compare a peer's opening with this rank's call; CollectiveError names both when they differ."""
        if delivery.reason == "refused" or delivery.size < HEADER:
            raise CollectiveError(
                f"rank {peer} sent {delivery.size} bytes at the start of {self.call}, which is no header; do all ranks "
                "run the same gradwire version?"
            )
        try:
            theirs, number, size = unpack(bytes(buffer.head))
        except ValueError as error:
            raise CollectiveError(f"rank {peer} sent no header at the start of {self.call}: {error}") from error
        if theirs != self.call or number != self.number & 0xFFFFFFFF:
            raise CollectiveError(
                f"ranks disagree about collective number {self.number} of this group: rank {self.group.rank} called "
                f"{self.call}, rank {peer} called {theirs}; every rank must call the same in the same order"
            )
        if size != nbytes or (size <= INLINE and delivery.size != HEADER + size):
            raise CollectiveError(
                f"{self.call}, number {self.number}: rank {peer} sends {size} bytes to rank {self.group.rank}, which "
                f"expects {nbytes}; the tensors' shapes differ between the ranks"
            )

    def exchange(self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor]) -> Steps:
        """Move whole flat tensors: starts all transfers at once; ends when all are done."""
        openings = self.post_openings(receives)
        large = {peer: self.post(peer, flat, 1) for peer, flat in receives.items() if flat.nbytes > INLINE}
        leaving = self._start_sends(sends)
        for peer, (opening, buffer) in openings.items():
            flat = receives[peer]
            self.check_opening(peer, buffer, (yield opening), flat.nbytes)
            if peer not in large and flat.nbytes:
                flat.copy_(buffer.view(flat))
        yield from arrivals([*large.values(), *leaving])

    def _start_sends(self, sends: Mapping[int, Tensor]) -> list[Transfer]:
        """One opening for all peers that get the same tensor; large tensors follow as part 1."""
        alike: dict[int, list[int]] = {}
        for peer, flat in sends.items():
            alike.setdefault(id(flat), []).append(peer)
        for peers in alike.values():
            self.send_openings(peers, sends[peers[0]])
        return [self.send(peer, flat, 1) for peer, flat in sends.items() if flat.nbytes > INLINE]

    def scratch_rows(self, count: int, like: Tensor) -> Tensor:
        """`count` rows like the flat tensor `like`: memory of the operation's own, with unknown contents."""
        scratch = self.group.buffers.take_scratch(count * like.numel(), like.dtype)
        self._scratches.append(scratch)
        return scratch.view(count, like.numel())

    def complete(self) -> None:
        """The operation is complete: its buffers can be used again."""
        self.group.reclaim()
        for buffer in self._buffers:
            self.group.buffers.give(buffer)
        for scratch in self._scratches:
            self.group.buffers.give_scratch(scratch)
        self._transfers.clear()

    def abandon(self) -> None:
        """The operation failed: afterwards nothing reads or writes its buffers. They are not used again."""
        for transfer in self._transfers:
            cancel_transfer(transfer)
        self._transfers.clear()

    def _tag(self, part: int) -> int:
        return tags.collective(self.group.number, self.number, part)
