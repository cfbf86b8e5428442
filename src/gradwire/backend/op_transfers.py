"""Flight: one operation under way. It opens the conversation with each peer, checks what it called, and moves parts.

An algorithm is a generator over a flight: it starts transfers, yields each one it needs, and is resumed with the
Delivery once that is there. It never blocks, so that one thread can keep several operations moving.

The opening message to a peer is the header of the call; a payload of up to INLINE bytes comes inside it. Everything
else follows as numbered parts.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping

from torch import Tensor

from gradwire.backend import tags
from gradwire.backend.buffers import INLINE, MessageBuffer
from gradwire.backend.call import HEADER, Call, unpack
from gradwire.backend.errors import CollectiveError
from gradwire.backend.peer_group import PeerGroup, withdraw
from gradwire.transport.wires.base import Delivery, Transfer

Steps = Generator[Transfer, Delivery, None]


def arrivals(transfers: Iterable[Transfer]) -> Steps:
    """One after another until all are there."""
    for transfer in transfers:  # noqa: UP028  (a list's own iterator cannot be resumed with a Delivery)
        yield transfer


class OpTransfers:
    """The transfers of one operation; `number` is its place in the group's order."""

    def __init__(self, circle: PeerGroup, call: Call, number: int) -> None:
        self.circle, self.call, self.number = circle, call, number
        self._transfers: list[Transfer] = []
        self._boxes: list[MessageBuffer] = []
        self._scratches: list[Tensor] = []

    def post(self, peer: int, buffer: Tensor, part: int) -> Transfer:
        transfer = self.circle.post(peer, buffer, self._tag(part))
        self._transfers.append(transfer)
        return transfer

    def send(self, peer: int, buffer: Tensor, part: int) -> Transfer:
        transfer = self.circle.send(peer, buffer, self._tag(part))
        self._transfers.append(transfer)
        return transfer

    def expect(self, peers: Iterable[int]) -> dict[int, tuple[Transfer, MessageBuffer]]:
        """Make room for the opening messages of `peers`."""
        boxes = {peer: self.circle.boxes.take() for peer in peers}
        self._boxes += boxes.values()
        return {peer: (self.post(peer, box.memory, 0), box) for peer, box in boxes.items()}

    def open(self, peers: Iterable[int], flat: Tensor | None = None, nbytes: int | None = None) -> MessageBuffer:
        """Send the opening message to `peers`, with `flat` in it when it is small enough."""
        size = flat.nbytes if flat is not None else 0
        box = self.circle.boxes.take()
        box.head[:] = self.call.pack(self.number, size if nbytes is None else nbytes)
        inside = size if size <= INLINE else 0
        if flat is not None and inside:
            box.view(flat).copy_(flat)
        message = box.filled(inside)
        self.circle.trail([self.circle.send(peer, message, self._tag(0)) for peer in peers], box)
        return box

    def read(self, peer: int, box: MessageBuffer, delivery: Delivery, nbytes: int) -> None:
        """Compare a peer's opening with our own call; CollectiveError names both when they differ."""
        if delivery.reason == "refused" or delivery.size < HEADER:
            raise CollectiveError(f"rank {peer} sent {delivery.size} bytes where {self.call} begins; mixed versions?")
        try:
            theirs, number, size = unpack(bytes(box.head))
        except ValueError as error:
            raise CollectiveError(f"rank {peer} sent something else where {self.call} begins: {error}") from error
        if theirs != self.call or number != self.number & 0xFFFFFFFF:
            raise CollectiveError(
                f"ranks disagree about collective number {self.number} of this group: rank {self.circle.rank} called "
                f"{self.call}, rank {peer} called {theirs}; every rank must call the same in the same order"
            )
        if size != nbytes or (size <= INLINE and delivery.size != HEADER + size):
            raise CollectiveError(
                f"{self.call}, number {self.number}: rank {peer} sends {size} bytes to rank {self.circle.rank}, which "
                f"has room for {nbytes}; the tensors' shapes differ between the ranks"
            )

    def exchange(self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor]) -> Steps:
        """Move whole flat tensors: everything is posted and sent at once; ends when all of it is where it belongs."""
        openings = self.expect(receives)
        large = {peer: self.post(peer, flat, 1) for peer, flat in receives.items() if flat.nbytes > INLINE}
        leaving = self._start_sends(sends)
        for peer, (opening, box) in openings.items():
            flat = receives[peer]
            self.read(peer, box, (yield opening), flat.nbytes)
            if peer not in large and flat.nbytes:
                flat.copy_(box.view(flat))
        yield from arrivals([*large.values(), *leaving])

    def _start_sends(self, sends: Mapping[int, Tensor]) -> list[Transfer]:
        """One opening for all peers that get the same tensor; large tensors follow as part 1."""
        alike: dict[int, list[int]] = {}
        for peer, flat in sends.items():
            alike.setdefault(id(flat), []).append(peer)
        for peers in alike.values():
            self.open(peers, sends[peers[0]])
        return [self.send(peer, flat, 1) for peer, flat in sends.items() if flat.nbytes > INLINE]

    def rows(self, count: int, like: Tensor) -> Tensor:
        """`count` rows like the flat tensor `like`: memory of the operation's own, with unknown contents."""
        scratch = self.circle.boxes.take_scratch(count * like.numel(), like.dtype)
        self._scratches.append(scratch)
        return scratch.view(count, like.numel())

    def land(self) -> None:
        """It is complete: boxes and scratch can be used again."""
        self.circle.reap()
        for box in self._boxes:
            self.circle.boxes.give(box)
        for scratch in self._scratches:
            self.circle.boxes.give_scratch(scratch)
        self._transfers.clear()

    def abandon(self) -> None:
        """It failed: afterwards nobody reads or writes its buffers. Its memory is not used again."""
        for transfer in self._transfers:
            withdraw(transfer)
        self._transfers.clear()

    def _tag(self, part: int) -> int:
        return tags.collective(self.circle.group, self.number, part)
