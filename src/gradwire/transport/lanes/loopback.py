"""Loopback: all ranks in one process, exact and deterministic, with scripted faults. For tests, ours and users'.

world = Loopback(4, loss=seeded_loss(0.05, seed=1))       # 5 % of tolerant parts' packets are lost
world = Loopback(4, faults={(2, 5): LinkError("cut")})   # rank 2's sixth operation fails, and so do its partners'
lanes = [world.lane(rank) for rank in range(4)]
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch

from gradwire.clock import MonotonicClock
from gradwire.errors import IntegrityError, LinkError
from gradwire.transport.lanes.base import AllGather, AllReduce, AllToAll, Op, Ranges, Timing

# (operation, sender, receiver, size, critical bytes) -> byte ranges that do not arrive.
Loss = Callable[[int, int, int, int, int], Ranges]
# What one packet carries, in a scripted loss.
PACKET = 1400


def seeded_loss(rate: float, seed: int, burst: int = 1) -> Loss:
    """Every packet, or every run of `burst` packets, is lost with this chance; critical bytes never are."""

    def lose(number: int, sender: int, receiver: int, size: int, critical: int) -> Ranges:
        generator = np.random.default_rng((seed, number, sender, receiver))
        unit = PACKET * burst
        lost = np.flatnonzero(generator.random(-(-size // unit)) < rate) * unit
        cut = [(max(int(at), -(-critical // 4) * 4), min(int(at) + unit, size)) for at in lost]
        return tuple((low, high - low) for low, high in cut if high > low)

    return lose


@dataclass(slots=True)
class _Meeting:
    """One operation: the ranks that came so far, and how it ended."""

    ops: dict[int, Op] = field(default_factory=dict)
    done: bool = False
    error: Exception | None = None


class Loopback:
    """A world of ranks that share memory."""

    def __init__(
        self,
        world_size: int,
        faults: Mapping[tuple[int, int], Exception] | None = None,
        timeout: float = 10.0,
        loss: Loss | None = None,
    ) -> None:
        self.world_size = world_size
        self._loss = loss
        self._faults = dict(faults or {})
        self._timeout = timeout
        self._meetings: dict[int, _Meeting] = {}
        self._changed = threading.Condition()

    def lane(self, rank: int) -> LoopbackLane:
        return LoopbackLane(self, rank)

    def arrive(self, rank: int, number: int, op: Op) -> _Meeting:
        """Bring one rank's part of operation `number`; the last to come carries it out."""
        with self._changed:
            meeting = self._meetings.setdefault(number, _Meeting())
            meeting.error = meeting.error or self._faults.get((rank, number))
            meeting.ops[rank] = op
            if len(meeting.ops) == self.world_size and meeting.error is None:
                meeting.error = _carry_out([meeting.ops[r] for r in range(self.world_size)])
                if self._loss is not None and meeting.error is None:
                    _lose(meeting.ops, self._loss, number)
            meeting.done = meeting.error is not None or len(meeting.ops) == self.world_size
            self._changed.notify_all()
            return meeting

    def wait(self, meeting: _Meeting) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: meeting.done, self._timeout):
                missing = sorted(set(range(self.world_size)) - set(meeting.ops))
                raise LinkError(f"ranks {missing} did not come within {self._timeout:g} s")
        if meeting.error is not None:
            raise meeting.error


@dataclass(frozen=True, slots=True)
class LoopbackPending:
    """Waits for the others."""

    world: Loopback
    meeting: _Meeting
    op: Op
    started: float

    def wait(self) -> Timing:
        self.world.wait(self.meeting)
        nbytes = self.op.wire_bytes(self.world.world_size)
        return Timing(type(self.op).__name__, nbytes, self.started, MonotonicClock().now())


class LoopbackLane:
    """One rank's lane."""

    def __init__(self, world: Loopback, rank: int) -> None:
        self._world = world
        self._rank = rank
        self._number = 0

    def start(self, op: Op) -> LoopbackPending:
        meeting = self._world.arrive(self._rank, self._number, op)
        self._number += 1
        return LoopbackPending(self._world, meeting, op, MonotonicClock().now())

    def close(self) -> None:
        """Nothing is held."""


def _lose(ops: Mapping[int, Op], loss: Loss, number: int) -> None:
    """Take away what the script says, on both sides' books."""
    returned: dict[int, dict[int, Ranges]] = {rank: {} for rank in ops}
    for receiver, op in ops.items():
        if not isinstance(op, AllToAll) or op.losses is None:
            return
        parts = op.receive.view(len(ops), -1)
        for sender in ops:
            other = ops[sender]
            if sender == receiver or not isinstance(other, AllToAll) or other.losses is None:
                continue
            missing = loss(number, sender, receiver, parts.shape[1], other.losses.critical[receiver])
            for offset, length in missing:
                parts[sender, offset : offset + length].zero_()
            op.losses.came[sender] = returned[sender][receiver] = missing
    for rank, op in ops.items():
        if isinstance(op, AllToAll) and op.losses is not None:
            op.losses.returned = returned[rank].copy


def _carry_out(ops: list[Op]) -> Exception | None:
    if len({type(op) for op in ops}) != 1:
        return IntegrityError(f"ranks met with different operations: {[type(op).__name__ for op in ops]}")
    for rank, op in enumerate(ops):
        if isinstance(op, AllToAll):
            parts = [other.send.view(len(ops), -1)[rank] for other in ops if isinstance(other, AllToAll)]
            op.receive.view(-1).copy_(torch.cat(parts))
        elif isinstance(op, AllGather):
            op.receive.view(-1).copy_(torch.cat([o.send.view(-1) for o in ops if isinstance(o, AllGather)]))
    if isinstance(ops[0], AllReduce):
        tensors = [op.tensor for op in ops if isinstance(op, AllReduce)]
        stacked = torch.stack(tensors)
        result = stacked.amax(0) if ops[0].maximum else stacked.sum(0)
        for tensor in tensors:
            tensor.copy_(result)
    return None
