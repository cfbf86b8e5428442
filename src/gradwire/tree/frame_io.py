"""Port: the wire as walks use it. Frames out, frames in, and a callback when either is done.

Everything here runs on the walker's thread. Buffers come from a Scratch and go back to it; every transfer has the same
deadline, so the oldest is the one to look at. LinkError from a lost peer surfaces in `turn`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch import Tensor

from gradwire.clock import Clock
from gradwire.errors import LinkError, PeerClosedError
from gradwire.exchange.buffer_pool import BufferPool
from gradwire.transport.wires.base import RELIABLE, Contract, Delivery
from gradwire.transport.wires.completions import AwaitedTransfer, completions_of
from gradwire.tree.send_queue import Order, SendQueue

Arrived = Callable[[Tensor, Delivery], None]
Sent = Callable[[Delivery], None]
_CPU = torch.device("cpu")


@dataclass(slots=True)
class _PendingSend:
    transfer: AwaitedTransfer
    peer: int
    begun: float
    finish: Callable[[Delivery], None]
    no_deadline: bool
    data: bool = True
    awaits: tuple[int, int] | None = None


class FrameIO:
    """Transfers under way on one wire."""

    def __init__(self, wire: Any, clock: Clock, timeout: float, ignore_goodbyes: bool = True) -> None:
        self.wire = wire
        # A peer that has all it wants may leave while others still end the same step. Then its goodbye is no loss: if
        # anything was expected of it, the transfer of that says so.
        self._ignore_goodbyes = ignore_goodbyes
        self.left: set[int] = set()
        # Peers without a connection, for good or until one is made again.
        self.disconnected: set[int] = set()
        self.sent_bytes: Counter[int] = Counter()
        self.queued: Counter[int] = Counter()
        self._clock, self._timeout = clock, timeout
        self._buffers = BufferPool()
        self._send_queue = SendQueue(wire, clock)
        self._completions = completions_of(wire)
        self._under_way: dict[int, _PendingSend] = {}
        self._numbers = count()
        self._later: deque[Callable[[], None]] = deque()
        self._awaited: dict[tuple[int, int], tuple[int, Arrived]] = {}
        self._early: dict[tuple[int, int], Tensor] = {}

    def take_buffer(self, nbytes: int) -> Tensor:
        return self._buffers.take(nbytes, _CPU)

    def release_buffer(self, frame: Tensor) -> None:
        self._buffers.give(frame)

    def post(self, peer: int, tag: int, nbytes: int, arrived: Arrived, *, no_deadline: bool = False) -> int:
        """Wait for a frame; `arrived` owns it then. A patient wait has no deadline. Returns a key for `withdraw`."""
        early = self._early.pop((peer, tag), None)
        if early is not None:
            self._later.append(lambda: arrived(early, _whole(peer, early)))
            return next(self._numbers)
        frame = self.take_buffer(nbytes)
        transfer = self.wire.post(peer, frame, tag)
        key = self._track(transfer, peer, lambda delivery: arrived(frame, delivery), no_deadline)
        self._under_way[key].awaits = (peer, tag)
        self._awaited[peer, tag] = key, arrived
        return key

    def arrive(self, peer: int, tag: int, frame: Tensor) -> None:
        """A frame that `peer` sent by another way; whoever waits for its tag gets it, now or when he asks."""
        known = self._awaited.get((peer, tag))
        if known is None:
            self._early[peer, tag] = frame
            return
        self.cancel(known[0])
        known[1](frame, _whole(peer, frame))

    def send(
        self, peer: int, tag: int, frame: Tensor, contract: Contract = RELIABLE, sent: Sent | None = None,
        *, data: bool = True, order: Order | None = None,
    ) -> None:  # fmt: skip
        """Send a frame, which must stay as it is until `sent` is called. What is not data outlives a halted step.

        With an `order`, frames for a peer go in that order as far as they have not gone yet; without, at once.
        """
        self.queued[peer] += 1

        def finish(delivery: Delivery) -> None:
            self.queued[peer] -= 1
            self.sent_bytes[peer] += delivery.arrived
            if sent is not None:
                sent(delivery)
            if order is not None:
                self._send_queue.done(peer, frame.numel())

        def start() -> None:
            transfer = self.wire.send(peer, frame, contract, tag)
            self._under_way[self._track(transfer, peer, finish, no_deadline=False)].data = data

        if order is None:
            start()
        else:
            self._send_queue.put(peer, order, frame.numel(), start)

    def cancel(self, key: int) -> None:
        """Stop waiting for a frame."""
        entry = self._pop(key)
        if entry is not None:
            entry.transfer.cancel()

    def poll(self, timeout: float) -> None:
        """Wait until something is done or somebody nudges, and call back. LinkError for a lost peer or a deadline."""
        while self._later:
            self._later.popleft()()
        transfers = {key: entry.transfer for key, entry in self._under_way.items()}
        for key in self._completions.wait(transfers, timeout):
            entry = self._pop(key)
            if entry is None:
                continue  # withdrawn by a callback before it
            try:
                delivery = entry.transfer.wait(1.0)
            except LinkError as error:
                if self._left_in_order(entry, error):
                    continue
                raise LostPeerError(entry.peer, str(error), isinstance(error, PeerClosedError)) from error
            # The other end gave it up: it begins the step anew, or stops. This end is about to hear so.
            if delivery.reason != "cancelled":
                entry.finish(delivery)
        self._check_deadlines()

    def _left_in_order(self, entry: _PendingSend, error: LinkError) -> bool:
        """Whether this failure only says that a peer left in order."""
        if self._ignore_goodbyes and isinstance(error, PeerClosedError):
            self.left.add(entry.peer)
        return entry.peer in self.left and (entry.no_deadline or not entry.data)

    def wake(self) -> None:
        self._completions.nudge()

    def drop(self, peer: int | None = None) -> None:
        """Drop every transfer (with one peer), without callbacks."""
        for key, entry in list(self._under_way.items()):
            if peer is None or entry.peer == peer:
                self.cancel(key)
        self._send_queue.drop(peer)
        self.queued.clear()
        self._early.clear()
        self._later.clear()

    def drop_step_data(self) -> None:
        """Drop what belongs to the step under way; standing waits and messages go on."""
        for key, entry in list(self._under_way.items()):
            if entry.data and not entry.no_deadline:
                self.cancel(key)
        self._send_queue.drop()
        self.queued.clear()
        self._early.clear()
        self._later.clear()

    @property
    def idle(self) -> bool:
        """Whether nothing but patient waits is under way."""
        return (
            not self._later and self._send_queue.empty and all(entry.no_deadline for entry in self._under_way.values())
        )

    def close(self) -> None:
        self.drop()
        self._completions.close()

    def _track(
        self, transfer: AwaitedTransfer, peer: int, finish: Callable[[Delivery], None], no_deadline: bool
    ) -> int:
        key = next(self._numbers)
        self._under_way[key] = _PendingSend(transfer, peer, self._clock.now(), finish, no_deadline)
        return key

    def _pop(self, key: int) -> _PendingSend | None:
        entry = self._under_way.pop(key, None)
        if entry is not None and entry.awaits is not None:
            del self._awaited[entry.awaits]
        return entry

    def _check_deadlines(self) -> None:
        oldest = next((entry for entry in self._under_way.values() if not entry.no_deadline), None)
        if oldest is not None and self._clock.now() - oldest.begun > self._timeout:
            raise LinkError(
                f"rank {oldest.peer}: nothing came through for {self._timeout:g} s. Its process stopped, or another "
                "rank it waits for; GRADWIRE_TRANSPORT_TIMEOUT sets how long to wait"
            )


def _whole(peer: int, frame: Tensor) -> Delivery:
    return Delivery(peer, frame.numel(), frame.numel(), (), "complete", 0.0)


class LostPeerError(LinkError):
    """A LinkError that knows whom it is about, and whether that one closed its end itself."""

    def __init__(self, peer: int, text: str, farewell: bool = False) -> None:
        super().__init__(text)
        self.peer, self.farewell = peer, farewell
