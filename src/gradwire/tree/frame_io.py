"""Frame I/O: sends and receives frames on one wire, with a callback when each transfer is done.

Everything here runs on the executor's thread. Buffers come from a BufferPool and go back to it. All transfers have the
same timeout, so only the oldest has to be checked. `poll` raises LostPeerError for a lost peer.
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
from gradwire.tree.lost_peer import LostPeerError
from gradwire.tree.send_queue import Order, SendQueue

Arrived = Callable[[Tensor, Delivery], None]
Sent = Callable[[Delivery], None]
_CPU = torch.device("cpu")


@dataclass(slots=True)
class _PendingTransfer:
    transfer: AwaitedTransfer
    peer: int
    begun: float
    finish: Callable[[Delivery], None]
    no_deadline: bool
    data: bool = True
    sends: bool = False
    awaits: tuple[int, int] | None = None


class FrameIO:
    """Pending transfers on one wire, and which peers are gone."""

    def __init__(self, wire: Any, clock: Clock, timeout: float, allow_leaving: bool = True) -> None:
        self.wire = wire
        # A peer that has completed its last step may close while others still finish the same step. That is no loss: a
        # transfer that still needed the peer fails by itself.
        self._allow_leaving = allow_leaving
        self.left: set[int] = set()
        # Peers without a connection, permanently or until they are reconnected.
        self.disconnected: set[int] = set()
        self.sent_bytes: Counter[int] = Counter()
        self.queued: Counter[int] = Counter()
        self._clock, self._timeout = clock, timeout
        self._buffers = BufferPool()
        self._send_queue = SendQueue(wire, clock)
        self._completions = completions_of(wire)
        self._pending: dict[int, _PendingTransfer] = {}
        self._numbers = count()
        self._ready: deque[tuple[int, Callable[[], None]]] = deque()
        self._posted: dict[tuple[int, int], tuple[int, Arrived]] = {}
        self._early: dict[tuple[int, int], Tensor] = {}

    def now(self) -> float:
        return self._clock.now()

    def take_buffer(self, nbytes: int) -> Tensor:
        return self._buffers.take(nbytes, _CPU)

    def release_buffer(self, frame: Tensor) -> None:
        self._buffers.give(frame)

    def post(self, peer: int, tag: int, nbytes: int, arrived: Arrived, *, no_deadline: bool = False) -> int:
        """Post a receive; `arrived` then owns the frame. Returns a key for `cancel`."""
        early = self._early.pop((peer, tag), None)
        if early is not None:
            self._ready.append((peer, lambda: arrived(early, _whole(peer, early))))
            return next(self._numbers)
        frame = self.take_buffer(nbytes)
        transfer = self.wire.post(peer, frame, tag)
        key = self._track(transfer, peer, lambda delivery: arrived(frame, delivery), no_deadline)
        self._pending[key].awaits = (peer, tag)
        self._posted[peer, tag] = key, arrived
        return key

    def deliver(self, peer: int, tag: int, frame: Tensor) -> None:
        """A frame that `peer` sent over a side route; it completes the receive with its tag."""
        known = self._posted.get((peer, tag))
        if known is None:
            self._early[peer, tag] = frame
            return
        self.cancel(known[0])
        known[1](frame, _whole(peer, frame))

    def send(
        self, peer: int, tag: int, frame: Tensor, contract: Contract = RELIABLE, sent: Sent | None = None,
        *, data: bool = True, order: Order | None = None,
    ) -> None:  # fmt: skip
        """Send a frame, which must not change until `sent` is called. Unless it is `data`, it survives a halted step.

        Frames with an `order` wait in the send queue, sorted by it; frames without one are sent at once.
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
            entry = self._pending[self._track(transfer, peer, finish, no_deadline=False)]
            entry.data, entry.sends = data, True

        if order is None:
            start()
        else:
            self._send_queue.put(peer, order, frame.numel(), start)

    def cancel(self, key: int) -> None:
        """Cancel a receive."""
        entry = self._pop(key)
        if entry is not None:
            entry.transfer.cancel()

    def poll(self, timeout: float) -> None:
        """Wait for a completed transfer or `wake`, then run callbacks. LinkError for a lost peer or a timeout."""
        while self._ready:
            self._ready.popleft()[1]()
        transfers = {key: entry.transfer for key, entry in self._pending.items()}
        for key in self._completions.wait(transfers, timeout):
            entry = self._pop(key)
            if entry is None:
                continue  # cancelled by an earlier callback
            try:
                delivery = entry.transfer.wait(1.0)
            except LinkError as error:
                if self._left_normally(entry, error):
                    continue
                raise LostPeerError(entry.peer, str(error), isinstance(error, PeerClosedError)) from error
            # The peer cancelled it because it repeats the step or stops; a control message about that follows.
            if delivery.reason != "cancelled":
                entry.finish(delivery)
        self._check_deadlines()

    def _left_normally(self, entry: _PendingTransfer, error: LinkError) -> bool:
        """Whether this failure only means that a peer left normally."""
        if self._allow_leaving and isinstance(error, PeerClosedError):
            self.left.add(entry.peer)
        return entry.peer in self.left and (entry.no_deadline or not entry.data)

    def wake(self) -> None:
        self._completions.nudge()

    def drop(self, peer: int | None = None) -> None:
        """Cancel every transfer (or those with one peer), without callbacks."""
        for key, entry in list(self._pending.items()):
            if peer is None or entry.peer == peer:
                self.cancel(key)
        self._forget(peer)

    def drop_step_data(self) -> None:
        """Cancel the transfers of the current step; control messages and receives without deadline continue."""
        for key, entry in list(self._pending.items()):
            if entry.data and not entry.no_deadline:
                self.cancel(key)
        self._forget(None)

    def _forget(self, peer: int | None) -> None:
        """Drop what waits to be sent or delivered; of one peer, or of all."""
        self._send_queue.drop(peer)
        self._early = {key: frame for key, frame in self._early.items() if peer is not None and key[0] != peer}
        self._ready = deque(one for one in self._ready if peer is not None and one[0] != peer)
        self.queued = Counter(entry.peer for entry in self._pending.values() if entry.sends)
        self.queued.update(self._send_queue.waiting())

    def disconnect(self, peer: int) -> None:
        """Use this peer no more, until `reconnected`."""
        self.drop(peer)
        self.disconnected.add(peer)

    def reconnected(self, peer: int) -> None:
        self.disconnected.discard(peer)

    @property
    def idle(self) -> bool:
        """Whether only receives without a deadline are pending."""
        return not self._ready and self._send_queue.empty and all(entry.no_deadline for entry in self._pending.values())

    def close(self) -> None:
        self.drop()
        self._completions.close()

    def _track(
        self, transfer: AwaitedTransfer, peer: int, finish: Callable[[Delivery], None], no_deadline: bool
    ) -> int:
        key = next(self._numbers)
        self._pending[key] = _PendingTransfer(transfer, peer, self._clock.now(), finish, no_deadline)
        return key

    def _pop(self, key: int) -> _PendingTransfer | None:
        entry = self._pending.pop(key, None)
        if entry is not None and entry.awaits is not None:
            del self._posted[entry.awaits]
        return entry

    def _check_deadlines(self) -> None:
        oldest = next((entry for entry in self._pending.values() if not entry.no_deadline), None)
        if oldest is not None and self._clock.now() - oldest.begun > self._timeout:
            raise LinkError(
                f"rank {oldest.peer}: no transfer ended for {self._timeout:g} s. Its process stopped, or it waits for "
                "another rank; set transport.timeout (GRADWIRE_TRANSPORT_TIMEOUT) higher if steps take longer"
            )


def _whole(peer: int, frame: Tensor) -> Delivery:
    return Delivery(peer, frame.numel(), frame.numel(), (), "complete", 0.0)
