"""Filters: minimum and maximum over a time window, and exponential averages. Pure; `now` is passed in."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class WindowedMin:
    """The minimum of the last `window` seconds, by a queue of increasing candidates."""

    window: float
    _candidates: deque[tuple[float, float]] = field(default_factory=deque)

    def add(self, value: float, now: float) -> float:
        while self._candidates and self._candidates[-1][1] >= value:
            self._candidates.pop()
        self._candidates.append((now, value))
        while self._candidates[0][0] < now - self.window:
            self._candidates.popleft()
        return self._candidates[0][1]

    @property
    def value(self) -> float | None:
        return self._candidates[0][1] if self._candidates else None


@dataclass(slots=True)
class WindowedMax:
    """The maximum of the last `window` seconds."""

    window: float
    _negated: WindowedMin = field(init=False)

    def __post_init__(self) -> None:
        self._negated = WindowedMin(self.window)

    def add(self, value: float, now: float) -> float:
        return -self._negated.add(-value, now)

    @property
    def value(self) -> float | None:
        least = self._negated.value
        return None if least is None else -least


@dataclass(slots=True)
class Ewma:
    """value <- value + gain x (sample - value); the first sample is the first value."""

    gain: float
    value: float | None = None

    def add(self, sample: float) -> float:
        self.value = sample if self.value is None else self.value + self.gain * (sample - self.value)
        return self.value
