"""Series: numbers over time in bounded memory, and a distribution in bins."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

# Points a series keeps; a chart is rarely wider.
MOST_POINTS: Final = 2048
# Width of a bin on a logarithmic scale: quantiles are exact within one per cent.
_WIDTH: Final = math.log(1.02)


@dataclass(slots=True)
class Series:
    """Means over intervals: when the series is full, neighbours are merged and each point covers twice as many."""

    most: int = MOST_POINTS
    times: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    _interval: int = 1
    _count: int = 0
    _sum: float = 0.0
    _first: float = 0.0

    def add(self, time: float, value: float) -> None:
        if not math.isfinite(value):
            return
        if self._count == 0:
            self._first = time
        self._count += 1
        self._sum += value
        if self._count >= self._interval:
            self._append()

    def _append(self) -> None:
        self.times.append(self._first)
        self.values.append(self._sum / self._count)
        self._count, self._sum = 0, 0.0
        if len(self.times) >= self.most:
            self._halve()

    def _halve(self) -> None:
        even = len(self.times) // 2 * 2
        self.times = self.times[:even:2]
        self.values = [(a + b) / 2 for a, b in zip(self.values[:even:2], self.values[1:even:2], strict=True)]
        self._interval *= 2

    def __iter__(self) -> Iterator[tuple[float, float]]:
        return zip(self.times, self.values, strict=True)

    def __len__(self) -> int:
        return len(self.times)


@dataclass(slots=True)
class Distribution:
    """A distribution of positive numbers."""

    count: int = 0
    total: float = 0.0
    _bins: Counter[int] = field(default_factory=Counter)

    def add(self, value: float) -> None:
        if not 0 < value < math.inf:
            return
        self.count += 1
        self.total += value
        self._bins[math.floor(math.log(value) / _WIDTH)] += 1

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0

    def quantile(self, share: float) -> float:
        """The number below which `share` of all numbers lie; 0 if there are none."""
        wanted, seen = share * self.count, 0
        for index, count in sorted(self._bins.items()):
            seen += count
            if seen >= wanted:
                return math.exp((index + 0.5) * _WIDTH)
        return 0.0

    def bins(self) -> list[tuple[float, float, int]]:
        """(from, to, count) in ascending order."""
        return [(math.exp(i * _WIDTH), math.exp((i + 1) * _WIDTH), n) for i, n in sorted(self._bins.items())]
