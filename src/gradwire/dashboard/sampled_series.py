"""Sampled series: one number over time in bounded memory, reduced to the resolution of a chart.

Points come in order of time. A series keeps at most CAPACITY slots; when it is full, neighbours are merged in pairs, so
that a slot covers 1, 2, 4, ... points and keeps their minimum, maximum and mean. Spikes survive every merge.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

# Keeps every step of an hour with steps of 0.22 s, in 0.5 MB.
CAPACITY: Final = 16384

# Points wait in lists until this many can be reduced at once: numpy is slow for single points.
BATCH: Final = 256

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Window:
    """A series between two times: interval i begins at `at[i]`, with `low[i] <= mean[i] <= high[i]`."""

    at: Floats
    low: Floats
    high: Floats
    mean: Floats


class SampledSeries:
    """`append` adds a point, `window` returns the data of a chart."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        if capacity < 2 or capacity % 2:
            raise ValueError(f"capacity must be even and at least 2, but it is {capacity}")
        self._capacity = capacity
        self._slots = _reduced(np.zeros(0), np.zeros(0), 1)
        self._span = 1
        self._batch = BATCH
        self._pending_at: list[float] = []
        self._pending: list[float] = []
        self._last_at = -np.inf
        self.points = 0

    def append(self, at: float, value: float) -> None:
        """Add a point; a time before the last one is replaced by the last one."""
        self._last_at = max(at, self._last_at)
        self._pending_at.append(self._last_at)
        self._pending.append(value)
        self.points += 1
        if len(self._pending) >= self._batch:
            self._flush()

    def window(self, start: float, end: float, width: int) -> Window:
        """About `width` intervals at most that cover [start, end], with one neighbour on each side."""
        slots = self._all()
        at = slots[0]
        first = max(0, int(np.searchsorted(at, start, "left")) - 1)
        last = min(at.size, int(np.searchsorted(at, end, "right")) + 1)
        at, low, high, total, count = slots[:, first:last]
        if at.size <= width:
            return Window(at, low, high, total / count)
        pixel = np.floor((at - start) / (end - start) * width)
        firsts = np.flatnonzero(np.diff(pixel, prepend=-np.inf))
        mean = np.add.reduceat(total, firsts) / np.add.reduceat(count, firsts)
        return Window(at[firsts], np.minimum.reduceat(low, firsts), np.maximum.reduceat(high, firsts), mean)

    def _all(self) -> Floats:
        waiting = _reduced(np.array(self._pending_at), np.array(self._pending), self._span)
        return np.concatenate([self._slots, waiting], axis=1)

    def _flush(self) -> None:
        """Move pending points, in whole slots, to the array; halve the array while it is too long."""
        whole = len(self._pending) // self._span * self._span
        fresh = _reduced(np.array(self._pending_at[:whole]), np.array(self._pending[:whole]), self._span)
        del self._pending_at[:whole], self._pending[:whole]
        self._slots = np.concatenate([self._slots, fresh], axis=1)
        while self._slots.shape[1] > self._capacity:
            self._halve()

    def _halve(self) -> None:
        even = self._slots.shape[1] // 2 * 2
        left, right, odd = self._slots[:, 0:even:2], self._slots[:, 1:even:2], self._slots[:, even:]
        merged = (
            left[0],
            np.minimum(left[1], right[1]),
            np.maximum(left[2], right[2]),
            left[3] + right[3],
            left[4] + right[4],
        )
        self._slots = np.concatenate([np.stack(merged), odd], axis=1)
        self._span *= 2
        self._batch = max(BATCH, self._span)


def _reduced(at: Floats, values: Floats, span: int) -> Floats:
    """Rows at, low, high, total and count; one slot for every `span` points, the last one for the remainder."""
    if at.size == 0:
        return np.zeros((5, 0))
    firsts = np.arange(0, at.size, span)
    count = np.minimum(span, at.size - firsts).astype(np.float64)
    low, high = np.minimum.reduceat(values, firsts), np.maximum.reduceat(values, firsts)
    return np.stack([at[firsts], low, high, np.add.reduceat(values, firsts), count])
