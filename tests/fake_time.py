"""A stand-in for the module `time` in one module under test.

Patching `time.monotonic` itself would stop the clocks of all threads of the process: an event loop that looks at it
then waits for hours.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


class FakeTime:
    """`now` is its monotonic clock, which `sleep` advances; everything else is the real module's."""

    def __init__(self, now: float = 0.0, *, slept: Callable[[float], None] | None = None) -> None:
        self.now, self._slept = now, slept

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self._slept is not None:
            self._slept(seconds)

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)
