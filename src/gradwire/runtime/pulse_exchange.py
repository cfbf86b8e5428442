"""Pulse exchange: one round of pulses and rank 0's decision, while a step's gradients are in flight.

    1. a pulse from every rank to every other
    2. every rank handles the pulses of the others; rank 0 decides
    3. rank 0's decision to all others

Each operation has a lane of its own. A round that has begun is completed on every rank, also where training has ended
and nobody handles the pulses: the other ranks may still wait for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

import torch
from torch import Tensor

from gradwire.decide.decision_record import SIZE as DECISION_SIZE
from gradwire.decide.decision_record import pack_decision, unpack_decision
from gradwire.errors import LinkError
from gradwire.runtime.pipeline import Pipeline
from gradwire.sense.pulse import SIZE, Pulse, unpack
from gradwire.transport.lanes.base import AllToAll, Broadcast, Op, Timing
from gradwire.types import Acks, Bucket, Decision, LinkView, StepFacts

# The operations of a round.
PULSE_LANES: Final = 2


class RankReport(NamedTuple):
    """Of the step that ended on this rank: its decision, its facts, when its gradient was ready."""

    ended: Decision
    facts: StepFacts | None
    ready: float


# Returns the decision to send; the other ranks' results are not used.
OnPulses = Callable[["PulseRound", dict[int, Pulse]], Decision]


def broadcast_decision(pipeline: Pipeline, decision: Decision, rank: int) -> Decision:
    """Rank 0's decision, before the first round."""
    data = bytes(DECISION_SIZE) if rank else pack_decision(decision)
    record = torch.frombuffer(bytearray(data), dtype=torch.uint8)

    def ops() -> Iterator[Op]:
        yield Broadcast(record)

    pipeline.run(ops())
    return decision if rank == 0 else unpack_decision(bytes(record.numpy()))


class PulseRound:
    """What this rank sent, and what arrived. `on_pulses` is called on a lane's thread unless the round was cancelled;
    `pulses` waits for that call too, `decision` for the whole round. The lanes' deadlines end both waits. `needed` is
    when this rank's next step began."""

    def __init__(self, step: int, report: RankReport, buckets: tuple[Bucket, ...], on_pulses: OnPulses) -> None:
        self.step, self.buckets = step, buckets
        ended, self.facts, self.ready = report
        self.level, self.transport = ended.level, ended.transport
        self.links: dict[int, LinkView] = {}
        self.acks = Acks()
        self.sent = self.needed = 0.0
        self.arrivals: dict[int, float] = {}
        self._on_pulses = on_pulses
        self._claimed = threading.Lock()
        self._handler_thread: threading.Thread | None = None
        self._handled, self._done = threading.Event(), threading.Event()
        self._error: BaseException | None = None
        self._pulses: dict[int, Pulse] = {}
        self._decision, self._decided_at = ended, 0.0
        self._rank = 0

    def begin(self, pipeline: Pipeline, rows: Callable[[], list[bytes]], rank: int, world_size: int) -> None:
        self._rank = rank
        pipeline.submit(self._ops(rows, world_size), self._finish, self._record_times)

    def pulses(self) -> dict[int, Pulse]:
        """The other ranks' pulses."""
        self._handled.wait()
        if self._error is not None:
            raise self._error
        return self._pulses

    def decision(self) -> Decision:
        """Rank 0's."""
        self._done.wait()
        if self._error is not None:
            raise self._error
        return self._decision

    @property
    def late(self) -> float:
        """By how many seconds the decision came later than this rank's next step could have used it."""
        return self._decided_at - self.needed

    def cancel(self) -> bool:
        """True: `on_pulses` will not be called for this round. False: it was called, and has returned."""
        if self._claimed.acquire(blocking=False):
            return True
        if self._handler_thread is not threading.current_thread():
            self._handled.wait()
        return False

    def lateness(self, elsewhere: dict[int, float]) -> float:
        """How much later than this rank the last one was ready."""
        return max([0.0, *(ready - self.ready for ready in elsewhere.values())])

    def _ops(self, rows: Callable[[], list[bytes]], world_size: int) -> Iterator[Op]:
        received = torch.empty(SIZE * world_size, dtype=torch.uint8)
        yield AllToAll(torch.frombuffer(bytearray(b"".join(rows())), dtype=torch.uint8), received)  # 1
        with self._own_errors():
            self._handle(received)  # 2
        self._handled.set()
        data = bytes(DECISION_SIZE) if self._rank else pack_decision(self._decision)
        record = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        yield Broadcast(record)  # 3
        if self._rank:
            with self._own_errors():
                self._decision = unpack_decision(bytes(record.numpy()))

    @contextmanager
    def _own_errors(self) -> Iterator[None]:
        """An error that is not a lane's is raised on the training thread with its own type."""
        try:
            yield
        except BaseException as failure:
            self._error = failure
            raise

    def _handle(self, received: Tensor) -> None:
        rows = bytes(received.numpy())
        peers = (peer for peer in range(len(rows) // SIZE) if peer != self._rank)
        self._pulses = {peer: unpack(rows[peer * SIZE : (peer + 1) * SIZE]) for peer in peers}
        if self._claimed.acquire(blocking=False):
            self._handler_thread = threading.current_thread()
            self._decision = self._on_pulses(self, self._pulses)

    def _record_times(self, timing: Timing) -> None:
        if timing.kind == "Broadcast":
            self._decided_at = timing.finished
        else:
            self.arrivals = dict(timing.arrivals)

    def _finish(self, error: BaseException | None) -> None:
        if error is not None and self._error is None:
            self._error = LinkError(f"pulse: {error}")
            self._error.__cause__ = error
        self._handled.set()
        self._done.set()
