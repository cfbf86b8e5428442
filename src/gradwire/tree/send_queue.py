"""Outbox: frames that wait for the wire, per peer, oldest piece first.

A wire serves transfers in the order in which it gets them. Were all given to it at once, results would queue behind
every sum that is still to come, and members further down would wait for nothing. So a wire gets only as much as keeps
it busy; the rest waits here, where an older piece may overtake.
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
# A wire is kept busy by four times what is under way on a full link, or by what it carries in 10 ms (the time this
# thread may need to notice); below 64 KiB it would be all wake-ups. Chosen, not measured. Two frames in any case: with
# one, a slow link stands still for a round trip and a wake-up after every frame.
LEAST: Final = 64 << 10
FRAMES: Final = 2
PRODUCTS: Final = 4.0
NOTICE: Final = 0.01
# Seconds for which a look at the wire's estimates is good.
FRESH: Final = 0.2


class SendQueue:
    """Decides when a frame is given to the wire; `start` of each is called once, in due course."""

    def __init__(self, wire: Any, clock: Clock) -> None:
        self._wire, self._clock = wire, clock
        self._waiting: dict[int, list[tuple[Order, int, int, Callable[[], None]]]] = defaultdict(list)
        self._given: Counter[int] = Counter()
        self._frames: Counter[int] = Counter()
        self._numbers = count()
        self._views: dict[int, LinkView] = {}
        self._seen = float("-inf")

    def put(self, peer: int, order: Order, nbytes: int, start: Callable[[], None]) -> None:
        heapq.heappush(self._waiting[peer], (order, next(self._numbers), nbytes, start))
        self._pump(peer)

    def done(self, peer: int, nbytes: int) -> None:
        """A frame that was given to the wire has left it."""
        self._given[peer] -= nbytes
        self._frames[peer] -= 1
        self._pump(peer)

    def drop(self, peer: int | None = None) -> None:
        for one in list(self._waiting) if peer is None else [peer]:
            self._waiting[one].clear()
            self._given[one] = self._frames[one] = 0

    @property
    def empty(self) -> bool:
        return not any(self._waiting.values())

    def _pump(self, peer: int) -> None:
        waiting = self._waiting[peer]
        while waiting and (self._frames[peer] < FRAMES or self._given[peer] < self._room(peer)):
            _, _, nbytes, start = heapq.heappop(waiting)
            self._given[peer] += nbytes
            self._frames[peer] += 1
            start()

    def _room(self, peer: int) -> float:
        now = self._clock.now()
        if now - self._seen > FRESH and hasattr(self._wire, "views"):
            self._views, self._seen = self._wire.views(), now
        view = self._views.get(peer)
        if view is None or view.bandwidth is None:
            return float("inf")
        return max(LEAST, view.bandwidth * max(NOTICE, PRODUCTS * (view.rtprop or 0.0)))
