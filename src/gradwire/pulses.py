"""Pulses: one round of records from every rank to every other, under way beside a step's gradients."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from gradwire.errors import LinkError
from gradwire.flow import Acks, Decision, LinkView, StepFacts
from gradwire.pipeline import Pipeline
from gradwire.sense.pulse import SIZE, Pulse, unpack
from gradwire.transport.base import AllToAll, Op, Timing


class Round:
    """What this rank sent, and what came."""

    def __init__(self, wish: Decision, facts: StepFacts | None, ready: float) -> None:
        self.wish, self.facts, self.ready = wish, facts, ready
        self.level = wish.level  # of the step that `facts` describe
        self.links: dict[int, LinkView] = {}
        self.acks = Acks()
        self.sent = 0.0
        self.arrivals: dict[int, float] = {}
        self._done = threading.Event()
        self._error: BaseException | None = None
        self._received: Tensor | None = None
        self._rank = 0

    def begin(self, line: Pipeline, rows: Callable[[], list[bytes]], rank: int, count: int) -> None:
        self._rank = rank
        self._received = torch.empty(SIZE * count, dtype=torch.uint8)
        line.submit(self._ops(rows, self._received), self._finish, self._note)

    @property
    def arrived(self) -> bool:
        """Whether every pulse is there."""
        return self._done.is_set() and self._error is None

    def result(self) -> dict[int, Pulse]:
        """The other ranks' pulses; the lane's deadline ends the wait."""
        self._done.wait()
        if self._error is not None:
            raise LinkError(f"pulse: {self._error}") from self._error
        assert self._received is not None
        rows = bytes(self._received.numpy())
        count = len(rows) // SIZE
        return {peer: unpack(rows[peer * SIZE : (peer + 1) * SIZE]) for peer in range(count) if peer != self._rank}

    def lateness(self, elsewhere: dict[int, float]) -> float:
        """How much later than this rank the last one was ready."""
        return max([0.0, *(ready - self.ready for ready in elsewhere.values())])

    def _ops(self, rows: Callable[[], list[bytes]], received: Tensor) -> Iterator[Op]:
        yield AllToAll(torch.frombuffer(bytearray(b"".join(rows())), dtype=torch.uint8), received)

    def _note(self, timing: Timing) -> None:
        self.arrivals = dict(timing.arrivals)

    def _finish(self, error: BaseException | None) -> None:
        self._error = error
        self._done.set()
