"""Engine: the flow-level simulator. Chunks pass lanes in virtual time; lanes share links max-min fairly.

In: a World. Out: a SimulatedRun. A lane sends one chunk at a time, that of the tree with the least progress first;
busy lanes share the resources they use (`simulate.fair`). `quantum` trades exactness for speed: rates are recomputed
at most that often, and a lane that becomes busy in between waits until then for its first rate.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from gradwire.errors import IntegrityError
from gradwire.plan.model.auxiliary import takes_side
from gradwire.simulate.fair import Ints, max_min
from gradwire.simulate.world import World

# Chunks in flight on one side route: one on each of its two links.
IN_FLIGHT = 2
# Bottleneck levels computed per recomputation; large networks have many levels with almost equal rates.
EXACT_ROUNDS, QUICK_ROUNDS = 1 << 30, 6
# (progress, leg, piece, remaining side lanes)
Item = tuple[float, int, int, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """Seconds until the last chunk arrived, bytes through every resource, chunks that used a side route."""

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
        # Per lane: rate, bytes left at `since`, and a stamp that invalidates events of older rates.
        self._rate = [0.0] * lanes
        self._left = [0.0] * lanes
        self._since = [0.0] * lanes
        self._stamp = [0] * lanes
        # (time, 0, lane, stamp, ()) when a chunk leaves, (time, 1, leg, piece, remaining side lanes) when it arrives.
        self._events: list[tuple[float, int, int, int, tuple[int, ...]]] = []
        self._carried = [0.0] * len(world.capacity)
        self._sideways = 0
        self._on_side_route: dict[tuple[int, int], tuple[int, tuple[int, ...]]] = {}
        self._in_flight: dict[tuple[int, ...], int] = {}
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
                raise IntegrityError(f"simulator: {left} chunks wait for each other: the plan has a cycle")
            self._now, kind, first, second, remaining = heapq.heappop(self._events)
            if kind:
                left -= self._arrive(first, second, remaining)
            elif second == self._stamp[first]:
                self._finish(first)
        return SimulatedRun(self._now, tuple(self._carried), self._sideways)

    def _share(self, at: float) -> None:
        """New fair rates for all busy lanes, from `at` on."""
        self._now, self._shared_at, self._stale = at, at, False
        busy = np.array([item is not None for item in self._serving], dtype=bool)
        lanes = np.flatnonzero(busy)
        index = np.cumsum(busy) - 1
        used = busy[self._flow]
        rounds = EXACT_ROUNDS if self._quantum == 0 else QUICK_ROUNDS
        rates = max_min(index[self._flow[used]], self._resource[used], len(lanes), self._capacity, rounds)
        for lane, rate in zip(lanes.tolist(), rates.tolist(), strict=True):
            if rate != self._rate[lane]:
                self._left[lane] -= (at - self._since[lane]) * self._rate[lane]
                self._since[lane] = at
                self._rate[lane] = rate
                self._schedule(lane)

    def _schedule(self, lane: int) -> None:
        """Schedule the time at which the lane's chunk leaves at the current rate."""
        self._stamp[lane] += 1
        rate = self._rate[lane]
        if rate > 0:
            end = self._since[lane] + max(0.0, self._left[lane]) / rate
            heapq.heappush(self._events, (end, 0, lane, self._stamp[lane], ()))

    def _ready(self, leg: int, piece: int) -> None:
        """Queue a chunk in its own lane, from which an idle side route may take it later."""
        lane = self._world.lane[leg]
        self._enqueue(lane, ((piece + 0.5) / self._world.pieces[leg], leg, piece, ()))
        for route in self._world.sideways.get(lane, ()):
            self._offer(lane, route)

    def _offer(self, lane: int, route: tuple[int, ...]) -> None:
        """Move the last chunk of the lane's queue to a side route, if the queue is long and the route is idle."""
        waiting, first = self._waiting[lane], route[0]
        side_queue = len(self._waiting[first]) + (self._serving[first] is not None)
        if self._in_flight.get(route, 0) >= IN_FLIGHT or not takes_side(len(waiting), side_queue):
            return
        item = max(waiting)
        if item[3] or (item[1], item[2]) in self._on_side_route:
            return
        waiting.remove(item)
        heapq.heapify(waiting)
        self._on_side_route[item[1], item[2]] = lane, route
        self._in_flight[route] = self._in_flight.get(route, 0) + 1
        self._sideways += 1
        self._enqueue(first, (*item[:3], route[1:]))

    def _enqueue(self, lane: int, item: Item) -> None:
        heapq.heappush(self._waiting[lane], item)
        if self._serving[lane] is None:
            self._serve(lane)

    def _serve(self, lane: int) -> None:
        """Start the next chunk at the lane's current rate; a lane that was idle requests a recomputation."""
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
        _, leg, piece, remaining = item
        for resource in self._world.crossed[lane]:
            self._carried[resource] += self._world.nbytes[leg]
        summing = 0.0 if remaining else self._world.summing[leg]
        heapq.heappush(self._events, (self._now + self._world.delay[lane] + summing, 1, leg, piece, remaining))
        self._serve(lane)

    def _arrive(self, leg: int, piece: int, remaining: tuple[int, ...]) -> int:
        """A chunk arrived: a relay forwards it (0); at its destination it releases the waiting legs (1)."""
        world = self._world
        if remaining:
            self._enqueue(remaining[0], ((piece + 0.5) / world.pieces[leg], leg, piece, remaining[1:]))
            return 0
        if (leg, piece) in self._on_side_route:
            lane, route = self._on_side_route.pop((leg, piece))
            self._in_flight[route] -= 1
            self._offer(lane, route)
        for waiter in world.waiters[leg]:
            self._missing[waiter][piece] -= 1
            if not self._missing[waiter][piece]:
                self._ready(waiter, piece)
        return 1
