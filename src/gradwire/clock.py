"""Clocks. Code that decides takes `now` as an argument; only the outermost code reads a clock, by this protocol."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A monotonic clock in seconds; its zero is arbitrary."""

    def now(self) -> float: ...


class MonotonicClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        return time.monotonic()


class VirtualClock:
    """A clock that moves only by `advance`; it does not start at zero, so that no code may rely on zero."""

    def __init__(self, start: float = 1_000.0) -> None:
        self._now = start

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> float:
        if seconds < 0:
            raise ValueError(f"seconds: {seconds} is negative; a monotonic clock cannot go back")
        self._now += seconds
        return self._now
