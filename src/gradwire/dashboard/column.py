"""Column: one number over time in bounded memory, and the part of it that a chart can show.

Points come in order of time. A column keeps at most CAPACITY slots; when it is full, neighbours are merged two by two,
so that a slot stands for 1, 2, 4, ... points and keeps their lowest, highest and mean. Spikes survive every merge.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

# An hour of steps of 0.22 s keeps every step; a column is then 0.5 MB.
CAPACITY: Final = 16384

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Window:
    """A column between two times: bucket i begins at `at[i]` and holds `low[i] <= mean[i] <= high[i]`."""

    at: Floats
    low: Floats
    high: Floats
    mean: Floats


class Column:
    """`append` adds a point, `window` answers a chart."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        if capacity < 2 or capacity % 2:
            raise ValueError(f"a column's capacity is even and at least 2, not {capacity}")
        self._capacity = capacity
        self._slots = np.zeros((4, min(256, capacity)))  # at, low, high, total
        self._counts = np.zeros(min(256, capacity), np.int64)
        self._used = 0
        self._span = 1
        self.points = 0

    @property
    def last_at(self) -> float:
        """When the newest slot begins; minus infinity while there is none."""
        return float(self._slots[0, self._used - 1]) if self._used else -np.inf

    def append(self, at: float, value: float) -> None:
        """A point at `at`; one that is older than its predecessor is taken to be as old."""
        self.points += 1
        if self._used and self._counts[self._used - 1] < self._span:
            self._join(self._used - 1, value)
            return
        if self._used == self._counts.size:
            self._make_room()
        self._slots[:, self._used] = (max(at, self.last_at), value, value, value)
        self._counts[self._used] = 1
        self._used += 1

    def window(self, start: float, end: float, width: int) -> Window:
        """At most about `width` buckets that cover [start, end], and one neighbour on each side for the line to run to."""
        at = self._slots[0, : self._used]
        first = max(0, int(np.searchsorted(at, start, "left")) - 1)
        last = min(self._used, int(np.searchsorted(at, end, "right")) + 1)
        if last - first <= width:
            chosen = np.arange(first, last)
        else:
            pixel = np.floor((at[first:last] - start) / (end - start) * width)
            chosen = first + np.flatnonzero(np.diff(pixel, prepend=-np.inf))
        return self._reduced(chosen, last)

    def _reduced(self, firsts: NDArray[np.int64], last: int) -> Window:
        """Merge the slots from each of `firsts` up to the next (and the final ones up to `last`)."""
        if firsts.size == 0:
            empty = np.zeros(0)
            return Window(empty, empty, empty, empty)
        at, low, high, total = self._slots[:, :last]
        counts = np.add.reduceat(self._counts[:last], firsts)
        return Window(
            at[firsts],
            np.minimum.reduceat(low, firsts),
            np.maximum.reduceat(high, firsts),
            np.add.reduceat(total, firsts) / counts,
        )

    def _join(self, slot: int, value: float) -> None:
        self._slots[1, slot] = min(self._slots[1, slot], value)
        self._slots[2, slot] = max(self._slots[2, slot], value)
        self._slots[3, slot] += value
        self._counts[slot] += 1

    def _make_room(self) -> None:
        if self._used < self._capacity:
            more = min(self._used, self._capacity - self._used)
            self._slots = np.concatenate([self._slots, np.zeros((4, more))], axis=1)
            self._counts = np.concatenate([self._counts, np.zeros(more, np.int64)])
            return
        even, odd = self._slots[:, 0::2], self._slots[:, 1::2]
        half = self._used // 2
        merged = (even[0], np.minimum(even[1], odd[1]), np.maximum(even[2], odd[2]), even[3] + odd[3])
        self._counts[:half] = self._counts[0::2] + self._counts[1::2]
        self._slots[:, :half] = np.stack(merged)
        self._used = half
        self._span *= 2
