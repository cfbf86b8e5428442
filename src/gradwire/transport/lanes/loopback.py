"""Loopback: lanes between ranks of one process, exact and deterministic, with scripted faults. For tests.

world = Loopback(4, loss=seeded_loss(0.05, seed=1))       # loses 5 % of the packets that may be lost
world = Loopback(4, loss=..., late=True)                  # receivers report what they lost after the operation
world = Loopback(4, faults={(2, 5): LinkError("cut")})   # rank 2's sixth operation fails on all ranks
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
from gradwire.transport.lanes.base import AllGather, AllReduce, AllToAll, Broadcast, Op, Ranges, Timing

# (operation, sender, receiver, size, critical bytes) -> byte ranges that do not arrive.
Loss = Callable[[int, int, int, int, int], Ranges]
# What one packet carries, in a scripted loss.
PACKET = 1400


def seeded_loss(rate: float, seed: int, burst: int = 1) -> Loss:
    """Every packet, or every run of `burst` packets, is lost with this probability; critical bytes never are."""

    def lose(number: int, sender: int, receiver: int, size: int, critical: int) -> Ranges:
        generator = np.random.default_rng((seed, number, sender, receiver))
        unit = PACKET * burst
        lost = np.flatnonzero(generator.random(-(-size // unit)) < rate) * unit
        cut = [(max(int(at), -(-critical // 4) * 4), min(int(at) + unit, size)) for at in lost]
        return tuple((low, high - low) for low, high in cut if high > low)

    return lose


@dataclass(slots=True)
class _SharedOp:
    """One operation: the ranks that started it so far, and how it ended."""

    ops: dict[int, Op] = field(default_factory=dict)
    done: bool = False
    error: Exception | None = None


class Loopback:
    """The ranks of one process, which share memory."""

    def __init__(
        self,
        world_size: int,
        faults: Mapping[tuple[int, int], Exception] | None = None,
        timeout: float = 10.0,
        loss: Loss | None = None,
        late: bool = False,
    ) -> None:
        self.world_size = world_size
        self._loss, self._late = loss, late
        self._faults = dict(faults or {})
        self._timeout = timeout
        self._ops: dict[int, _SharedOp] = {}
        self._changed = threading.Condition()

    def lane(self, rank: int) -> LoopbackLane:
        return LoopbackLane(self, rank)

    def join(self, rank: int, number: int, op: Op) -> _SharedOp:
        """Add one rank's part of operation `number`; the last rank runs it."""
        with self._changed:
            shared = self._ops.setdefault(number, _SharedOp())
            shared.error = shared.error or self._faults.get((rank, number))
            shared.ops[rank] = op
            if len(shared.ops) == self.world_size and shared.error is None:
                shared.error = _run([shared.ops[r] for r in range(self.world_size)])
                if self._loss is not None and shared.error is None:
                    _apply_loss(shared.ops, self._loss, number, self._late)
            shared.done = shared.error is not None or len(shared.ops) == self.world_size
            self._changed.notify_all()
            return shared

    def wait(self, shared: _SharedOp) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: shared.done, self._timeout):
                missing = sorted(set(range(self.world_size)) - set(shared.ops))
                raise LinkError(f"ranks {missing} did not start the operation within {self._timeout:g} s")
        if shared.error is not None:
            raise shared.error


@dataclass(frozen=True, slots=True)
class LoopbackPending:
    """Waits for the others."""

    world: Loopback
    shared: _SharedOp
    op: Op
    started: float

    def wait(self) -> Timing:
        self.world.wait(self.shared)
        nbytes = self.op.wire_bytes(self.world.world_size)
        return Timing(type(self.op).__name__, nbytes, self.started, MonotonicClock().now())


class LoopbackLane:
    """One rank's lane."""

    def __init__(self, world: Loopback, rank: int) -> None:
        self._world = world
        self._rank = rank
        self._number = 0

    def start(self, op: Op) -> LoopbackPending:
        shared = self._world.join(self._rank, self._number, op)
        self._number += 1
        return LoopbackPending(self._world, shared, op, MonotonicClock().now())

    def close(self) -> None:
        """Nothing to release."""


def _apply_loss(ops: Mapping[int, Op], loss: Loss, number: int, late: bool) -> None:
    """Zero what the script loses, and report it to both sides."""
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
            op.losses.missing[sender] = returned[sender][receiver] = missing
    for rank, op in ops.items():
        if isinstance(op, AllToAll) and op.losses is not None:
            op.losses.undelivered = returned[rank].copy
            op.losses.reported = lambda: not late


def _run(ops: list[Op]) -> Exception | None:
    if len({type(op) for op in ops}) != 1:
        return IntegrityError(f"ranks started different operations: {[type(op).__name__ for op in ops]}")
    for rank, op in enumerate(ops):
        if isinstance(op, AllToAll):
            parts = [other.send.view(len(ops), -1)[rank] for other in ops if isinstance(other, AllToAll)]
            op.receive.view(-1).copy_(torch.cat(parts))
        elif isinstance(op, AllGather):
            op.receive.view(-1).copy_(torch.cat([o.send.view(-1) for o in ops if isinstance(o, AllGather)]))
        elif isinstance(op, Broadcast) and isinstance(ops[0], Broadcast):
            op.tensor.copy_(ops[0].tensor)
    if isinstance(ops[0], AllReduce):
        tensors = [op.tensor for op in ops if isinstance(op, AllReduce)]
        stacked = torch.stack(tensors)
        result = stacked.amax(0) if ops[0].maximum else stacked.sum(0)
        for tensor in tensors:
            tensor.copy_(result)
    return None
