"""Wire lane: runs operations over LTP or TCP, by direct transfers between every two ranks.

Operations are reliable except for an AllToAll with `losses`: its parts are sent with that tolerance, their first bytes
are critical, and both sides know afterwards what did not arrive. An operation ends when everything it receives is
there, one way's delay after its peers have sent it; its own sends finish behind it (unfinished_sends.py). All lanes of
a process share one endpoint; tags keep them apart: lane number in the high bits, the operation's number below.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import torch
from torch import Tensor

from gradwire.clock import Clock
from gradwire.transport.lanes.base import AllGather, AllReduce, AllToAll, Broadcast, Losses, Op, Pending, Ranges, Timing
from gradwire.transport.lanes.unfinished_sends import UnfinishedSends
from gradwire.transport.wires.base import RELIABLE, Contract, Transfer, Wire

LANE_SHIFT: Final = 48
# Up to this many bytes every rank sums all tensors; above, each rank sums one part and sends the sum to the others.
SMALL_SUM: Final = 64 * 1024


class WireLane:
    """One lane of one rank; `sends` is shared by all lanes of the endpoint."""

    def __init__(self, endpoint: Wire, world_size: int, number: int, sends: UnfinishedSends, clock: Clock) -> None:
        self._endpoint = endpoint
        self._world_size = world_size
        self._tag = number << LANE_SHIFT
        self._sends = sends
        self._clock = clock

    def start(self, op: Op) -> Pending:
        if isinstance(op, AllReduce):
            return GatherSum(self, op) if op.tensor.nbytes <= SMALL_SUM else ShardedSum(self, op)
        if isinstance(op, Broadcast):
            return self._broadcast(op, self.next_tag())
        return self.exchange(op, self.next_tag())

    def close(self) -> None:
        """Wait until everything sent has reached its rank. The carrier that opened the endpoint closes it."""
        self._sends.finish()

    def next_tag(self) -> int:
        """Numbered in the order of `start`, which is the same on all ranks."""
        self._tag += 1
        return self._tag

    def exchange(self, op: AllToAll | AllGather, tag: int) -> WirePending:
        """Start an operation. Receives first; each rank starts with a different peer."""
        self._sends.check()
        rank, world = self._endpoint.rank, self._world_size
        receive, rows = op.receive.view(world, -1), 1 if isinstance(op, AllGather) else world
        send = op.send.view(rows, -1)
        losses = op.losses if isinstance(op, AllToAll) else None
        pending = WirePending(op, world, receive.shape[1] * receive.itemsize, self._sends, self._clock)
        peers = [(rank + shift) % world for shift in range(1, world)]
        receive[rank].copy_(send[rank % rows])
        pending.inbound = [self._endpoint.post(peer, receive[peer], tag) for peer in reversed(peers)]
        pending.outbound = [
            self._endpoint.send(peer, send[peer % rows], contract_of(losses, peer, send.shape[1]), tag)
            for peer in peers
        ]
        return pending

    def _broadcast(self, op: Broadcast, tag: int) -> WirePending:
        self._sends.check()
        world = self._world_size
        pending = WirePending(op, world, op.tensor.nbytes, self._sends, self._clock)
        if self._endpoint.rank:
            pending.inbound = [self._endpoint.post(0, op.tensor, tag)]
        else:
            pending.outbound = [self._endpoint.send(peer, op.tensor, RELIABLE, tag) for peer in range(1, world)]
        return pending

    @property
    def world_size(self) -> int:
        return self._world_size

    def now(self) -> float:
        return self._clock.now()


def contract_of(losses: Losses | None, peer: int, size: int) -> Contract:
    """`losses.tolerance` is a share of the values; critical bytes always arrive and must not count towards it."""
    if losses is None:
        return RELIABLE
    critical = min(losses.critical[peer], size)
    if critical == size:
        return RELIABLE
    share = 1.0 - (1.0 - losses.tolerance) * (size - critical) / size
    energies = losses.energies[peer] if losses.energies else None
    return Contract(tolerance=share, critical=((0, critical),) if critical else (), energies=energies)


class WirePending:
    """The transfers of one operation in both directions; `part` is the bytes of each."""

    def __init__(
        self, op: AllToAll | AllGather | Broadcast, world_size: int, part: int, sends: UnfinishedSends, clock: Clock
    ) -> None:
        self.inbound: list[Transfer] = []
        self.outbound: list[Transfer] = []
        self._kind, self._nbytes = type(op).__name__, op.wire_bytes(world_size)
        self._part = part
        self._losses = op.losses if isinstance(op, AllToAll) else None
        self._clock = clock
        self._sends = sends
        self._started = clock.now()
        self._deadline = sends.deadline()
        self._arrivals: dict[int, float] = {}

    def wait(self) -> Timing:
        missing = self._finish(self.inbound)
        arrivals = tuple(self._arrivals.items())
        if self._losses is None:
            with self._cancelled_on_failure():
                self._sends.add(self.outbound, self._part, self._deadline)
        else:
            self._losses.missing.update(missing)
            self._losses.undelivered = lambda: self._finish(self.outbound)
            self._losses.reported = lambda: all(transfer.done for transfer in self.outbound)
        return Timing(self._kind, self._nbytes, self._started, self._clock.now(), arrivals)

    def _finish(self, transfers: list[Transfer]) -> dict[int, Ranges]:
        """What is missing, by peer."""
        missing = {}
        with self._cancelled_on_failure():
            for transfer in transfers:
                missing[transfer.peer] = self._sends.result(transfer, self._deadline).missing
                self._arrivals[transfer.peer] = self._clock.now()
        return missing

    @contextmanager
    def _cancelled_on_failure(self) -> Iterator[None]:
        """After a failure the operation's buffers are not used any more."""
        try:
            yield
        except BaseException:
            for transfer in self.inbound + self.outbound:
                transfer.cancel()
            raise


class GatherSum:
    """An all-reduce by one all-gather: every rank adds in rank order, so that all get the same bits."""

    def __init__(self, lane: WireLane, op: AllReduce) -> None:
        self._lane, self._op = lane, op
        self._started = lane.now()
        self._rows = op.tensor.new_empty((lane.world_size, op.tensor.numel()))
        own = op.tensor.contiguous().view(-1)
        self._first = lane.exchange(AllGather(_bytes(own), _bytes(self._rows)), lane.next_tag())

    def wait(self) -> Timing:
        self._first.wait()
        self._op.tensor.copy_(_combine(self._rows, self._op).view_as(self._op.tensor))
        return Timing("AllReduce", self._op.wire_bytes(self._lane.world_size), self._started, self._lane.now())


class ShardedSum:
    """An all-reduce in two phases: parts to their owners, sums to all. The second starts in `wait`."""

    def __init__(self, lane: WireLane, op: AllReduce) -> None:
        self._lane, self._op = lane, op
        self._started = lane.now()
        world, numel = lane.world_size, op.tensor.numel()
        self._parts = op.tensor.new_zeros((world, -(-numel // world)))
        self._parts.view(-1)[:numel].copy_(op.tensor.reshape(-1))
        self._received = torch.empty_like(self._parts)
        self._first = lane.exchange(AllToAll(_bytes(self._parts), _bytes(self._received)), lane.next_tag())
        self._second = lane.next_tag()

    def wait(self) -> Timing:
        self._first.wait()
        mine = _combine(self._received, self._op).contiguous()
        self._lane.exchange(AllGather(_bytes(mine), _bytes(self._parts)), self._second).wait()
        self._op.tensor.copy_(self._parts.view(-1)[: self._op.tensor.numel()].view_as(self._op.tensor))
        return Timing("AllReduce", self._op.wire_bytes(self._lane.world_size), self._started, self._lane.now())


def _combine(rows: Tensor, op: AllReduce) -> Tensor:
    if op.maximum:
        return rows.amax(0)
    total = rows[0].clone()
    for row in rows[1:]:
        total.add_(row)
    return total


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.view(torch.uint8)
