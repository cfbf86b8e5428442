"""Sends: a lane that exchanges by direct sends between every two ranks of a process group.

Gloo's own gather passes parts around a ring (W - 1 hops of latency), through a worker thread and a second copy of the
result. Direct sends take one hop, write into the result directly, and wake no worker thread. Sums of whole tensors use
gloo's all-reduce.
"""

from __future__ import annotations

from torch import Tensor
from torch import distributed as dist

from gradwire.clock import Clock
from gradwire.errors import LinkError
from gradwire.transport.lanes.base import AllGather, AllReduce, AllToAll, Broadcast, Op, Pending, Timing
from gradwire.transport.lanes.collectives import CollectiveLane, explain

# Tags only have to differ between concurrent operations; gloo takes 32 bits.
TAGS = 1 << 20
# What an operation receives, by peer, and what it sends.
Started = tuple[list[tuple[int, dist.Work]], list[dist.Work]]


class SendPending:
    """The sends and receives of one operation."""

    def __init__(
        self, receives: list[tuple[int, dist.Work]], sends: list[dist.Work], op: Op, nbytes: int, clock: Clock
    ) -> None:
        self._receives = receives
        self._sends = sends
        self._kind = type(op).__name__
        self._nbytes = nbytes
        self._started = clock.now()
        self._clock = clock

    def wait(self) -> Timing:
        try:
            arrivals = tuple((peer, self._arrival(work)) for peer, work in self._receives)
            for work in self._sends:
                work.wait()
        except RuntimeError as error:
            raise LinkError(explain(error, self._kind)) from error
        return Timing(self._kind, self._nbytes, self._started, self._clock.now(), arrivals)

    def _arrival(self, work: dist.Work) -> float:
        work.wait()
        return self._clock.now()


class SendLane:
    """One gloo group, used by one thread."""

    def __init__(self, group: dist.ProcessGroup, clock: Clock) -> None:
        self._group = group
        self._clock = clock
        self._rank = group.rank()
        self._world_size = group.size()
        self._collective = CollectiveLane(group, clock)
        self._number = 0

    def start(self, op: Op) -> Pending:
        if isinstance(op, AllReduce):
            return self._collective.start(op)
        self._number = (self._number + 1) % TAGS
        try:
            receives, sends = self._broadcast(op.tensor) if isinstance(op, Broadcast) else self._exchange(op)
        except RuntimeError as error:
            raise LinkError(explain(error, type(op).__name__)) from error
        return SendPending(receives, sends, op, op.wire_bytes(self._world_size), self._clock)

    def close(self) -> None:
        self._collective.close()

    def _broadcast(self, tensor: Tensor) -> Started:
        if self._rank:
            return [(0, self._group.recv([tensor], 0, self._number))], []
        return [], [self._group.send([tensor], peer, self._number) for peer in range(1, self._world_size)]

    def _exchange(self, op: AllToAll | AllGather) -> Started:
        """Receives first, so that no arriving data has to be buffered; each rank starts with a different peer."""
        receive = op.receive.view(self._world_size, -1)
        send = op.send.view(1 if isinstance(op, AllGather) else self._world_size, -1)
        peers = [(self._rank + shift) % self._world_size for shift in range(1, self._world_size)]
        receives = [(peer, self._group.recv([receive[peer]], peer, self._number)) for peer in reversed(peers)]
        rows = send.shape[0]
        sends = [self._group.send([send[peer % rows]], peer, self._number) for peer in peers]
        receive[self._rank].copy_(send[self._rank % rows])
        return receives, sends
