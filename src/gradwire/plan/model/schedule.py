"""A list schedule of a plan: every chunk of every edge, each resource serving its users in turn.

In: moves (which resources they cross, bytes per chunk, what they wait for) and capacities. Out: the time the last
chunk lands. Pairs of members have one chunk under way each and take turns, which is fair queueing at the grain of a
turn; a resource is taken for bytes / its own capacity, so a wide uplink feeds several slow links at once. Of a pair's
chunks, the one whose tree is least far goes first.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Move:
    """`pieces` chunks of `nbytes` over `resources`; chunk k starts after chunk k of every move in `needs` landed."""

    resources: tuple[int, ...]
    nbytes: float
    delay: float
    pieces: int
    needs: tuple[int, ...]


def makespan(moves: Sequence[Move], capacity: Sequence[float], slices: int = 1) -> float:
    """Seconds until every chunk of every move has landed; turns are a chunk's `slices`-th part."""
    return _Schedule(moves, capacity, slices).run()


class _Schedule:
    """Events: (time, 0, piece, move) as a chunk lands, (time, 1 + progress, -1, line) as a line may start its head."""

    def __init__(self, moves: Sequence[Move], capacity: Sequence[float], slices: int) -> None:
        # Moves over the same resources stand in one line, so that only the head of a line competes for them.
        lines: dict[tuple[int, ...], int] = {}
        self._moves, self._slices = moves, slices
        self._line_of = [lines.setdefault(move.resources, len(lines)) for move in moves]
        self._held = [[(used, capacity[used]) for used in line] for line in lines]
        self._waiting: list[list[tuple[float, int, int, int]]] = [[] for _ in lines]
        self._armed = [False] * len(lines)
        self._idle_from = [0.0] * len(lines)
        self._free = [0.0] * len(capacity)
        self._missing = [[len(move.needs)] * move.pieces for move in moves]
        self._waiters: list[list[int]] = [[] for _ in moves]
        for index, move in enumerate(moves):
            for need in move.needs:
                self._waiters[need].append(index)
        self._queue: list[tuple[float, float, int, int]] = []

    def run(self) -> float:
        for index, move in enumerate(self._moves):
            if not move.needs:
                for piece in range(move.pieces):
                    self._join(0.0, index, piece)
        now = 0.0
        while self._queue:
            now, _, piece, index = heapq.heappop(self._queue)
            if piece < 0:
                self._start(now, index)
            else:
                self._land(now, index, piece)
        return now

    def _join(self, now: float, index: int, piece: int) -> None:
        """A chunk stands in its line, by progress of its tree, so that trees advance together."""
        line = self._line_of[index]
        progress = (piece + 0.5) / self._moves[index].pieces
        heapq.heappush(self._waiting[line], (progress, index, piece, self._slices))
        if not self._armed[line]:
            self._armed[line] = True
            heapq.heappush(self._queue, (max(now, self._idle_from[line]), 1.0 + progress, -1, line))

    def _start(self, now: float, line: int) -> None:
        """The head of a line takes its turn at every resource it crosses; the next one follows when it is through."""
        free = self._free
        _, index, piece, slices = heapq.heappop(self._waiting[line])
        move = self._moves[index]
        turn = move.nbytes / self._slices
        sent = 0.0
        for used, rate in self._held[line]:
            done = max(now, free[used]) + turn / rate
            free[used] = done
            sent = max(sent, done)
        if slices > 1:
            # A chunk that has begun goes on before any other of its line.
            heapq.heappush(self._waiting[line], (-1.0, index, piece, slices - 1))
        else:
            heapq.heappush(self._queue, (sent + move.delay, 0.0, piece, index))
        if self._waiting[line]:
            heapq.heappush(self._queue, (sent, 1.0 + self._waiting[line][0][0], -1, line))
        else:
            self._idle_from[line] = sent
            self._armed[line] = False

    def _land(self, now: float, index: int, piece: int) -> None:
        for waiter in self._waiters[index]:
            self._missing[waiter][piece] -= 1
            if not self._missing[waiter][piece]:
                self._join(now, waiter, piece)
