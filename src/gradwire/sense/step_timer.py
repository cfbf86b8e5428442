"""Step timer: records the times of buckets, operations and encoding of one step on one rank, and summarises them.

Operations overlap, so the network's time is the union of their intervals, not their sum. Called from several threads.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from gradwire.types import RoundNorms, StepFacts


@dataclass(slots=True)
class StepTimer:
    """Records one step; `lap` ends it and begins the next."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _ready: list[tuple[float, int]] = field(default_factory=list)
    _intervals: list[tuple[float, float]] = field(default_factory=list)
    _worked: list[tuple[float, float]] = field(default_factory=list)
    _wire: int = 0
    _work: float = 0.0
    _restored: float = 0.0
    _residual: float = 0.0
    _gradient: float = 0.0
    _began: float | None = None
    _needed: float = 0.0
    _steps: int = 1
    _divergence: RoundNorms | None = None

    def bucket_ready(self, now: float, nbytes: int) -> None:
        with self._lock:
            self._ready.append((now, nbytes))

    def needed(self, now: float) -> None:
        """Training could do without the result until now; without a call, until the last bucket was ready."""
        with self._lock:
            self._needed = now

    def operation(self, started: float, finished: float, nbytes: int) -> None:
        with self._lock:
            self._intervals.append((started, finished))
            self._wire += nbytes
            self._restored = max(self._restored, finished)

    def worked(self, seconds: float, now: float) -> None:
        """Encoding or decoding took this long, until now."""
        with self._lock:
            self._work += seconds
            self._worked.append((now - seconds, now))
            self._restored = max(self._restored, now)

    def energies(self, residual: float, gradient: float) -> None:
        """Add squared norms of samples of the residual and of the gradient."""
        with self._lock:
            self._residual += residual
            self._gradient += gradient

    def round_ended(self, steps: int) -> None:
        """A round of so many local steps has been computed; its exchange follows."""
        with self._lock:
            self._steps = steps

    def diverged(self, divergence: RoundNorms) -> None:
        """The exchange of a round is complete."""
        with self._lock:
            self._divergence = divergence

    def finish(self, hops: int, loss: float = 0.0) -> StepFacts | None:
        """Facts of the last step: no other step follows, so it ends when its gradient is restored."""
        with self._lock:
            if not self._ready:
                return None
            ended = max(self._restored, self._ready[-1][0], self._needed)
        return self.lap(ended, hops, loss)

    def drop(self) -> None:
        """Discard the current step: it failed."""
        with self._lock:
            self._ready = []

    def lap(self, now: float, hops: int, loss: float = 0.0) -> StepFacts | None:
        """Facts of the step that began with the previous lap, whose exchanges took `hops` latencies in a row."""
        with self._lock:
            began, self._began = self._began, now
            ready, intervals = self._ready, self._intervals
            facts = None
            if began is not None and ready:
                last = ready[-1][0]
                needed = max(last, self._needed)
                waited = (needed, max(needed, self._restored))
                carrying = union(within(intervals, waited))
                facts = StepFacts(
                    seconds=now - began,
                    exposed=max(0.0, self._restored - needed),
                    busy=union(intervals),
                    wire_bytes=self._wire,
                    hops=hops,
                    work=self._work,
                    span=last - ready[0][0],
                    buckets=tuple((at - ready[0][0], nbytes) for at, nbytes in ready),
                    residual=self._residual / self._gradient if self._gradient > 0 else 0.0,
                    loss=loss,
                    carrying=carrying,
                    encoding=union(within(intervals + self._worked, waited)) - carrying,
                    slack=needed - last,
                    steps=self._steps,
                    divergence=self._divergence,
                )
            self._ready, self._intervals, self._worked = [], [], []
            self._wire = 0
            self._steps, self._divergence = 1, None
            self._work = self._restored = self._residual = self._gradient = self._needed = 0.0
            return facts


def within(intervals: list[tuple[float, float]], window: tuple[float, float]) -> list[tuple[float, float]]:
    """The parts of the intervals that lie in the window."""
    first, last = window
    return [(max(begin, first), min(end, last)) for begin, end in intervals if end > first and begin < last]


def union(intervals: list[tuple[float, float]]) -> float:
    """Total time covered by at least one interval."""
    covered, reached = 0.0, float("-inf")
    for begin, end in sorted(intervals):
        covered += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return covered
