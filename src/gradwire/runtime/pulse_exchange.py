"""Pulses: one round of records from every rank to every other, under way beside a step's gradients."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from gradwire.errors import LinkError
from gradwire.level import Level
from gradwire.runtime.pipeline import Pipeline
from gradwire.sense.pulse import SIZE, Pulse, unpack
from gradwire.transport.lanes.base import AllToAll, Op, Timing
from gradwire.types import Acks, Bucket, Decision, LinkView, StepFacts


class RankReport(NamedTuple):
    """What a rank wishes, and of the step that ended: its level, its facts, when its gradient was ready."""

    wish: Decision
    level: Level
    facts: StepFacts | None
    ready: float


Hear = Callable[["PulseRound", dict[int, Pulse]], None]


class PulseRound:
    """What this rank sent, and what came. `hear` is called with it from the line's thread, unless nobody wants it any
    more; whoever waits for the result waits for that, too."""

    def __init__(self, step: int, told: RankReport, buckets: tuple[Bucket, ...], hear: Hear) -> None:
        self.step, self.buckets = step, buckets
        self.wish, self.level, self.facts, self.ready = told
        self.links: dict[int, LinkView] = {}
        self.acks = Acks()
        self.sent = 0.0
        self.arrivals: dict[int, float] = {}
        self._hear = hear
        self._claimed = threading.Lock()
        self._hearing: threading.Thread | None = None
        self._done = threading.Event()
        self._error: BaseException | None = None
        self._pulses: dict[int, Pulse] = {}
        self._received: Tensor | None = None
        self._rank = 0

    def begin(self, line: Pipeline, rows: Callable[[], list[bytes]], rank: int, count: int) -> None:
        self._rank = rank
        self._received = torch.empty(SIZE * count, dtype=torch.uint8)
        line.submit(self._ops(rows, self._received), self._finish, self._note)

    def result(self) -> dict[int, Pulse]:
        """The other ranks' pulses; the lane's deadline ends the wait."""
        self._done.wait()
        if self._error is not None:
            raise self._error
        return self._pulses

    def give_up(self) -> bool:
        """Nothing will be heard of this round any more; False when it was, and then that is over."""
        if self._claimed.acquire(blocking=False):
            return True
        if self._hearing is not threading.current_thread():
            self._done.wait()
        return False

    def lateness(self, elsewhere: dict[int, float]) -> float:
        """How much later than this rank the last one was ready."""
        return max([0.0, *(ready - self.ready for ready in elsewhere.values())])

    def _ops(self, rows: Callable[[], list[bytes]], received: Tensor) -> Iterator[Op]:
        yield AllToAll(torch.frombuffer(bytearray(b"".join(rows())), dtype=torch.uint8), received)

    def _note(self, timing: Timing) -> None:
        self.arrivals = dict(timing.arrivals)

    def _finish(self, error: BaseException | None) -> None:
        try:
            if error is not None:
                raise LinkError(f"pulse: {error}") from error
            self._pulses = self._unpacked()
            if self._claimed.acquire(blocking=False):
                self._hearing = threading.current_thread()
                self._hear(self, self._pulses)
        except BaseException as trouble:  # the training thread raises it, when it asks for the result
            self._error = trouble
        self._done.set()

    def _unpacked(self) -> dict[int, Pulse]:
        assert self._received is not None
        rows = bytes(self._received.numpy())
        count = len(rows) // SIZE
        return {peer: unpack(rows[peer * SIZE : (peer + 1) * SIZE]) for peer in range(count) if peer != self._rank}
