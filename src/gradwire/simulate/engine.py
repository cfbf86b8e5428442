"""The flow-level simulator: chunks through lanes in virtual time, lanes sharing links max-min fairly.

In: a World. Out: a Run. One chunk at a time per lane, the tree that is least far first; active lanes share what they
cross (`simulate.fair`). `window` trades exactness for speed: chunks that would end within it end together.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from gradwire.errors import IntegrityError
from gradwire.simulate.fair import Floats, Ints, max_min
from gradwire.simulate.world import World

# A chunk takes a side route when more than LONG others wait for its own lane and fewer than IDLE for the side's first.
LONG, IDLE = 2, 1
# (progress, leg, piece, side lanes still to cross)
Item = tuple[float, int, int, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Run:
    """Seconds from start to the last chunk landed, bytes through every resource, chunks that took a side route."""

    seconds: float
    carried: tuple[float, ...]
    sideways: int


class Engine:
    def __init__(self, world: World, window: float = 0.0) -> None:
        lanes = len(world.crossed)
        self._world, self._window = world, window
        self._capacity = np.array(world.capacity)
        self._incidence = [np.array(crossed, dtype=np.intp) for crossed in world.crossed]
        self._waiting: list[list[Item]] = [[] for _ in range(lanes)]
        self._serving: list[Item | None] = [None] * lanes
        self._missing = [[needs] * pieces for needs, pieces in zip(world.needs, world.pieces, strict=True)]
        self._landings: list[tuple[float, int, int, tuple[int, ...]]] = []
        self._left: Floats = np.zeros(lanes)
        self._rate: Floats = np.zeros(lanes)
        self._busy = np.zeros(lanes, dtype=bool)
        self._carried = np.zeros(len(world.capacity))
        self._sideways = 0
        self._shared = self._is_shared()
        self._alone = np.array([self._capacity[crossed].min() for crossed in self._incidence] or [0.0])

    def run(self) -> Run:
        world = self._world
        for leg, needs in enumerate(world.needs):
            if not needs:
                for piece in range(world.pieces[leg]):
                    self._ready(leg, piece)
        now, expected, landed = 0.0, sum(world.pieces), 0
        while landed < expected:
            self._share()
            active = np.flatnonzero(self._busy)
            ends = self._left[active] / self._rate[active]
            after = float(ends.min()) if active.size else np.inf
            arrival = self._landings[0][0] - now if self._landings else np.inf
            step = min(after, arrival)
            if not np.isfinite(step):
                raise IntegrityError(f"simulator: {expected - landed} chunks wait for each other; the plan has a cycle")
            step = max(0.0, step) + self._window
            now += step
            self._left[active] = np.maximum(0.0, self._left[active] - step * self._rate[active])
            # Compared against the step and not against zero bytes: rounding must not leave a chunk a hair unfinished.
            for lane in active[ends <= step * (1 + 1e-12)].tolist():
                self._finish(now, lane)
            while self._landings and self._landings[0][0] <= now:
                _, leg, piece, onward = heapq.heappop(self._landings)
                landed += self._land(leg, piece, onward)
        return Run(now, tuple(self._carried.tolist()), self._sideways)

    def _is_shared(self) -> bool:
        """Whether any resource is crossed by two lanes; if not, rates never change."""
        users = np.bincount(np.concatenate([*self._incidence, np.zeros(0, dtype=np.intp)]), minlength=1)
        return bool((users > 1).any())

    def _share(self) -> None:
        if not self._shared:
            self._rate = self._alone
            return
        active = np.flatnonzero(self._busy)
        if not active.size:
            return
        lengths = [len(self._incidence[lane]) for lane in active.tolist()]
        flow: Ints = np.repeat(np.arange(active.size), lengths)
        resource = np.concatenate([self._incidence[lane] for lane in active.tolist()])
        self._rate[active] = max_min(flow, resource, active.size, self._capacity)

    def _ready(self, leg: int, piece: int) -> None:
        """A chunk may go: by its own lane, or by a side route when that is idle and the own one is not."""
        world = self._world
        lane = world.lane[leg]
        onward: tuple[int, ...] = ()
        if world.sideways and len(self._waiting[lane]) > LONG:
            for route in world.sideways[leg]:
                if len(self._waiting[route[0]]) + (self._serving[route[0]] is not None) < IDLE:
                    lane, onward = route[0], route[1:]
                    self._sideways += 1
                    break
        self._enqueue(lane, ((piece + 0.5) / world.pieces[leg], leg, piece, onward))

    def _enqueue(self, lane: int, item: Item) -> None:
        heapq.heappush(self._waiting[lane], item)
        if self._serving[lane] is None:
            self._serve(lane)

    def _serve(self, lane: int) -> None:
        if not self._waiting[lane]:
            self._serving[lane] = None
            self._busy[lane] = False
            return
        item = heapq.heappop(self._waiting[lane])
        self._serving[lane] = item
        self._busy[lane] = True
        self._left[lane] = self._world.nbytes[item[1]]

    def _finish(self, now: float, lane: int) -> None:
        item = self._serving[lane]
        assert item is not None
        _, leg, piece, onward = item
        self._carried[self._incidence[lane]] += self._world.nbytes[leg]
        summing = 0.0 if onward else self._world.summing[leg]
        heapq.heappush(self._landings, (now + self._world.delay[lane] + summing, leg, piece, onward))
        self._serve(lane)

    def _land(self, leg: int, piece: int, onward: tuple[int, ...]) -> int:
        """A chunk arrived: at a relay it goes on, at its end it wakes who waited. Counts those at their end."""
        world = self._world
        if onward:
            self._enqueue(onward[0], ((piece + 0.5) / world.pieces[leg], leg, piece, onward[1:]))
            return 0
        for waiter in world.waiters[leg]:
            self._missing[waiter][piece] -= 1
            if not self._missing[waiter][piece]:
                self._ready(waiter, piece)
        return 1
