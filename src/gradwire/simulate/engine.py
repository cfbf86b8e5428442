"""The flow-level simulator: chunks through lanes in virtual time, lanes sharing links max-min fairly.

In: a World. Out: a Run. One chunk at a time per lane, the tree that is least far first; active lanes share what they
cross (`simulate.fair`). `quantum` trades exactness for speed: rates are shared out anew at most that often, and a lane
that falls busy in between waits for its first rate until then.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from gradwire.errors import IntegrityError
from gradwire.plan.model.auxiliary import takes_side
from gradwire.simulate.fair import Ints, max_min
from gradwire.simulate.world import World

# Chunks a sender lets be under way on one side route: one on each of its two links.
UNDER_WAY = 2
# Levels of bottlenecks looked at per sharing; large networks have many levels that differ by next to nothing.
EXACT_ROUNDS, QUICK_ROUNDS = 1 << 30, 6
# (progress, leg, piece, side lanes still to cross)
Item = tuple[float, int, int, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """Seconds from start to the last chunk landed, bytes through every resource, chunks that took a side route."""

    seconds: float
    carried: tuple[float, ...]
    sideways: int


class FlowSimulator:
    def __init__(self, world: World, quantum: float = 0.0) -> None:
        lanes = len(world.crossed)
        self._world, self._quantum = world, quantum
        self._capacity = np.array(world.capacity)
        lengths = [len(crossed) for crossed in world.crossed]
        self._flow: Ints = np.repeat(np.arange(lanes), lengths)
        self._resource: Ints = np.array([r for crossed in world.crossed for r in crossed], dtype=np.intp)
        self._alone = [min(world.capacity[r] for r in crossed) for crossed in world.crossed]
        self._shared = bool((np.bincount(self._resource, minlength=1) > 1).any())
        self._waiting: list[list[Item]] = [[] for _ in range(lanes)]
        self._serving: list[Item | None] = [None] * lanes
        self._missing = [[needs] * pieces for needs, pieces in zip(world.needs, world.pieces, strict=True)]
        # Per lane: rate, bytes left at `since`, and a stamp that makes events of older rates void.
        self._rate = [0.0] * lanes
        self._left = [0.0] * lanes
        self._since = [0.0] * lanes
        self._stamp = [0] * lanes
        # (time, 0, lane, stamp, ()) as a chunk leaves, (time, 1, leg, piece, side lanes still to cross) as it lands.
        self._events: list[tuple[float, int, int, int, tuple[int, ...]]] = []
        self._carried = [0.0] * len(world.capacity)
        self._sideways = 0
        self._aside: dict[tuple[int, int], tuple[int, tuple[int, ...]]] = {}
        self._under_way: dict[tuple[int, ...], int] = {}
        self._side_of: dict[int, list[tuple[int, tuple[int, ...]]]] = {}
        for lane, routes in world.sideways.items():
            for route in routes:
                self._side_of.setdefault(route[0], []).append((lane, route))
        self._now = 0.0
        self._stale = False
        self._shared_at = -np.inf

    def run(self) -> SimulatedRun:
        world = self._world
        for leg, needs in enumerate(world.needs):
            if not needs:
                for piece in range(world.pieces[leg]):
                    self._ready(leg, piece)
        left = sum(world.pieces)
        while left:
            due = self._events[0][0] if self._events else np.inf
            if self._stale and due >= max(self._now, self._shared_at + self._quantum):
                self._share(max(self._now, self._shared_at + self._quantum))
                continue
            if not self._events:
                raise IntegrityError(f"simulator: {left} chunks wait for each other; the plan has a cycle")
            self._now, kind, first, second, onward = heapq.heappop(self._events)
            if kind:
                left -= self._land(first, second, onward)
            elif second == self._stamp[first]:
                self._finish(first)
        return SimulatedRun(self._now, tuple(self._carried), self._sideways)

    def _share(self, at: float) -> None:
        """New fair rates for all busy lanes, from `at` on."""
        self._now, self._shared_at, self._stale = at, at, False
        busy = np.array([item is not None for item in self._serving], dtype=bool)
        lanes = np.flatnonzero(busy)
        place = np.cumsum(busy) - 1
        used = busy[self._flow]
        rounds = EXACT_ROUNDS if self._quantum == 0 else QUICK_ROUNDS
        rates = max_min(place[self._flow[used]], self._resource[used], len(lanes), self._capacity, rounds)
        for lane, rate in zip(lanes.tolist(), rates.tolist(), strict=True):
            if rate != self._rate[lane]:
                self._left[lane] -= (at - self._since[lane]) * self._rate[lane]
                self._since[lane] = at
                self._rate[lane] = rate
                self._schedule(lane)

    def _schedule(self, lane: int) -> None:
        """The event at which the lane's chunk leaves, if it goes on at this rate."""
        self._stamp[lane] += 1
        rate = self._rate[lane]
        if rate > 0:
            end = self._since[lane] + max(0.0, self._left[lane]) / rate
            heapq.heappush(self._events, (end, 0, lane, self._stamp[lane], ()))

    def _ready(self, leg: int, piece: int) -> None:
        """A chunk may go: into its own lane, from which an idle side route may take it later."""
        lane = self._world.lane[leg]
        self._enqueue(lane, ((piece + 0.5) / self._world.pieces[leg], leg, piece, ()))
        for route in self._world.sideways.get(lane, ()):
            self._offer(lane, route)

    def _offer(self, lane: int, route: tuple[int, ...]) -> None:
        """Move the chunk that would wait longest to a side route, if the lane's queue is long and the route idle."""
        waiting, first = self._waiting[lane], route[0]
        side_queue = len(self._waiting[first]) + (self._serving[first] is not None)
        if self._under_way.get(route, 0) >= UNDER_WAY or not takes_side(len(waiting), side_queue):
            return
        item = max(waiting)
        if item[3] or (item[1], item[2]) in self._aside:
            return
        waiting.remove(item)
        heapq.heapify(waiting)
        self._aside[item[1], item[2]] = lane, route
        self._under_way[route] = self._under_way.get(route, 0) + 1
        self._sideways += 1
        self._enqueue(first, (*item[:3], route[1:]))

    def _enqueue(self, lane: int, item: Item) -> None:
        heapq.heappush(self._waiting[lane], item)
        if self._serving[lane] is None:
            self._serve(lane)

    def _serve(self, lane: int) -> None:
        """The next chunk of a lane starts at the lane's present rate; a lane that was idle asks for a new sharing."""
        idle = self._serving[lane] is None
        self._since[lane] = self._now
        if not self._waiting[lane]:
            self._serving[lane] = None
            self._rate[lane] = 0.0
            self._stamp[lane] += 1
            self._stale = self._shared
            for busy, route in self._side_of.get(lane, ()):
                self._offer(busy, route)
            return
        item = heapq.heappop(self._waiting[lane])
        self._serving[lane] = item
        self._left[lane] = self._world.nbytes[item[1]]
        if not self._shared:
            self._rate[lane] = self._alone[lane]
        elif idle:
            self._rate[lane] = 0.0
            self._stale = True
        self._schedule(lane)

    def _finish(self, lane: int) -> None:
        item = self._serving[lane]
        assert item is not None
        _, leg, piece, onward = item
        for resource in self._world.crossed[lane]:
            self._carried[resource] += self._world.nbytes[leg]
        summing = 0.0 if onward else self._world.summing[leg]
        heapq.heappush(self._events, (self._now + self._world.delay[lane] + summing, 1, leg, piece, onward))
        self._serve(lane)

    def _land(self, leg: int, piece: int, onward: tuple[int, ...]) -> int:
        """A chunk arrived: at a relay it goes on, at its end it wakes who waited. Counts those at their end."""
        world = self._world
        if onward:
            self._enqueue(onward[0], ((piece + 0.5) / world.pieces[leg], leg, piece, onward[1:]))
            return 0
        if (leg, piece) in self._aside:
            lane, route = self._aside.pop((leg, piece))
            self._under_way[route] -= 1
            self._offer(lane, route)
        for waiter in world.waiters[leg]:
            self._missing[waiter][piece] -= 1
            if not self._missing[waiter][piece]:
                self._ready(waiter, piece)
        return 1
