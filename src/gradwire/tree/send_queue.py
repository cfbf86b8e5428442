"""Send queue: frames that wait for the wire, per peer, oldest piece first.

A wire sends transfers in the order in which it gets them. If it got all frames at once, results would queue behind
later sums, and members further down would wait without need. So the wire gets only enough to stay busy; the rest waits
here, where frames of older pieces go first.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import count
from typing import Any, Final

from gradwire.clock import Clock
from gradwire.types import LinkView

Order = tuple[int, int, int]
# The wire gets four bandwidth-delay products, or what it carries in 10 ms (the time until this thread may react); with
# less than 64 KiB, wake-ups would dominate. Chosen, not measured. Two frames at least: with one, a slow link is idle
# for a round trip and a wake-up after every frame.
MIN_BYTES: Final = 64 << 10
MIN_FRAMES: Final = 2
BDP_MULTIPLE: Final = 4.0
REACTION: Final = 0.01
# Seconds for which the wire's estimates are cached.
VIEW_AGE: Final = 0.2


class SendQueue:
    """Decides when a frame is given to the wire; calls `start` of each frame once."""

    def __init__(self, wire: Any, clock: Clock) -> None:
        self._wire, self._clock = wire, clock
        self._waiting: dict[int, list[tuple[Order, int, int, Callable[[], None]]]] = defaultdict(list)
        self._in_wire: Counter[int] = Counter()
        self._frames: Counter[int] = Counter()
        self._numbers = count()
        self._views: dict[int, LinkView] = {}
        self._viewed_at = float("-inf")

    def put(self, peer: int, order: Order, nbytes: int, start: Callable[[], None]) -> None:
        heapq.heappush(self._waiting[peer], (order, next(self._numbers), nbytes, start))
        self._pump(peer)

    def done(self, peer: int, nbytes: int) -> None:
        """A frame that was given to the wire has left it."""
        self._in_wire[peer] -= nbytes
        self._frames[peer] -= 1
        self._pump(peer)

    def drop(self, peer: int | None = None) -> None:
        for one in list(self._waiting) if peer is None else [peer]:
            self._waiting[one].clear()
            self._in_wire[one] = self._frames[one] = 0

    def waiting(self) -> dict[int, int]:
        """Frames that were not given to the wire yet, by peer."""
        return {peer: len(frames) for peer, frames in self._waiting.items() if frames}

    @property
    def empty(self) -> bool:
        return not any(self._waiting.values())

    def _pump(self, peer: int) -> None:
        waiting = self._waiting[peer]
        while waiting and (self._frames[peer] < MIN_FRAMES or self._in_wire[peer] < self._window(peer)):
            _, _, nbytes, start = heapq.heappop(waiting)
            self._in_wire[peer] += nbytes
            self._frames[peer] += 1
            start()

    def _window(self, peer: int) -> float:
        now = self._clock.now()
        if now - self._viewed_at > VIEW_AGE and hasattr(self._wire, "views"):
            self._views, self._viewed_at = self._wire.views(), now
        view = self._views.get(peer)
        if view is None or view.bandwidth is None:
            return float("inf")
        return max(MIN_BYTES, view.bandwidth * max(REACTION, BDP_MULTIPLE * (view.rtprop or 0.0)))
