"""Pulse exchange: one round of pulses from every rank to every other, while a step's gradients are in flight."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from gradwire.errors import LinkError
from gradwire.runtime.pipeline import Pipeline
from gradwire.sense.pulse import SIZE, Pulse, unpack
from gradwire.transport.lanes.base import AllToAll, Op, Timing
from gradwire.types import Acks, Bucket, Decision, LinkView, StepFacts


class RankReport(NamedTuple):
    """A rank's next decision, and of the step that ended: its decision, its facts, when its gradient was ready."""

    next_decision: Decision
    ended: Decision
    facts: StepFacts | None
    ready: float


OnPulses = Callable[["PulseRound", dict[int, Pulse]], None]


class PulseRound:
    """What this rank sent, and what arrived. `on_pulses` is called on the lane's thread unless the round was cancelled;
    `result` waits for that call too."""

    def __init__(self, step: int, report: RankReport, buckets: tuple[Bucket, ...], on_pulses: OnPulses) -> None:
        self.step, self.buckets = step, buckets
        self.next_decision, ended, self.facts, self.ready = report
        self.level, self.transport = ended.level, ended.transport
        self.links: dict[int, LinkView] = {}
        self.acks = Acks()
        self.sent = 0.0
        self.arrivals: dict[int, float] = {}
        self._on_pulses = on_pulses
        self._claimed = threading.Lock()
        self._handler_thread: threading.Thread | None = None
        self._done = threading.Event()
        self._error: BaseException | None = None
        self._pulses: dict[int, Pulse] = {}
        self._received: Tensor | None = None
        self._rank = 0

    def begin(self, pipeline: Pipeline, rows: Callable[[], list[bytes]], rank: int, world_size: int) -> None:
        self._rank = rank
        self._received = torch.empty(SIZE * world_size, dtype=torch.uint8)
        pipeline.submit(self._ops(rows, self._received), self._finish, self._record_arrivals)

    def result(self) -> dict[int, Pulse]:
        """The other ranks' pulses; the lane's deadline ends the wait."""
        self._done.wait()
        if self._error is not None:
            raise self._error
        return self._pulses

    def cancel(self) -> bool:
        """True: `on_pulses` will not be called for this round. False: it was called, and has returned."""
        if self._claimed.acquire(blocking=False):
            return True
        if self._handler_thread is not threading.current_thread():
            self._done.wait()
        return False

    def lateness(self, elsewhere: dict[int, float]) -> float:
        """How much later than this rank the last one was ready."""
        return max([0.0, *(ready - self.ready for ready in elsewhere.values())])

    def _ops(self, rows: Callable[[], list[bytes]], received: Tensor) -> Iterator[Op]:
        yield AllToAll(torch.frombuffer(bytearray(b"".join(rows())), dtype=torch.uint8), received)

    def _record_arrivals(self, timing: Timing) -> None:
        self.arrivals = dict(timing.arrivals)

    def _finish(self, error: BaseException | None) -> None:
        try:
            if error is not None:
                raise LinkError(f"pulse: {error}") from error
            self._pulses = self._unpacked()
            if self._claimed.acquire(blocking=False):
                self._handler_thread = threading.current_thread()
                self._on_pulses(self, self._pulses)
        except BaseException as failure:  # `result` raises it on the training thread
            self._error = failure
        self._done.set()

    def _unpacked(self) -> dict[int, Pulse]:
        assert self._received is not None
        rows = bytes(self._received.numpy())
        count = len(rows) // SIZE
        return {peer: unpack(rows[peer * SIZE : (peer + 1) * SIZE]) for peer in range(count) if peer != self._rank}
