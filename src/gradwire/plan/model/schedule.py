"""Schedule of a plan: a list schedule of every chunk of every edge, each resource serving its users in turn.

In: moves (the resources they use, bytes per chunk, what they wait for) and capacities. Out: the time at which the last
chunk arrives. Each pair of members sends one chunk at a time, and pairs take turns, which is fair queueing with the
granularity of a turn. A resource is occupied for bytes / its own capacity, so a fast uplink feeds several slow links at
once. Of a pair's chunks, the one whose tree has progressed least goes first.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Move:
    """`pieces` chunks of `nbytes` over `resources`; chunk k starts after chunk k of every move in `needs` arrived."""

    resources: tuple[int, ...]
    nbytes: float
    delay: float
    pieces: int
    needs: tuple[int, ...]


def makespan(moves: Sequence[Move], capacity: Sequence[float], slices: int = 1) -> float:
    """Seconds until every chunk of every move has arrived; a turn is 1 / `slices` of a chunk."""
    return _Schedule(moves, capacity, slices).run()


class _Schedule:
    """Events: (time, 0, piece, move) when a chunk arrives, (time, 1 + progress, -1, queue) when a queue may start its
    next chunk."""

    def __init__(self, moves: Sequence[Move], capacity: Sequence[float], slices: int) -> None:
        # Moves over the same resources share one queue, so that only the head of a queue competes for them.
        queues: dict[tuple[int, ...], int] = {}
        self._moves, self._slices = moves, slices
        self._queue_of = [queues.setdefault(move.resources, len(queues)) for move in moves]
        self._held = [[(used, capacity[used]) for used in queue] for queue in queues]
        self._waiting: list[list[tuple[float, int, int, int]]] = [[] for _ in queues]
        self._armed = [False] * len(queues)
        self._idle_from = [0.0] * len(queues)
        self._free = [0.0] * len(capacity)
        self._missing = [[len(move.needs)] * move.pieces for move in moves]
        self._waiters: list[list[int]] = [[] for _ in moves]
        for index, move in enumerate(moves):
            for need in move.needs:
                self._waiters[need].append(index)
        self._events: list[tuple[float, float, int, int]] = []

    def run(self) -> float:
        for index, move in enumerate(self._moves):
            if not move.needs:
                for piece in range(move.pieces):
                    self._join(0.0, index, piece)
        now = 0.0
        while self._events:
            now, _, piece, index = heapq.heappop(self._events)
            if piece < 0:
                self._start(now, index)
            else:
                self._arrive(now, index, piece)
        return now

    def _join(self, now: float, index: int, piece: int) -> None:
        """Add a chunk to its queue, ordered by the progress of its tree, so that trees advance together."""
        queue = self._queue_of[index]
        progress = (piece + 0.5) / self._moves[index].pieces
        heapq.heappush(self._waiting[queue], (progress, index, piece, self._slices))
        if not self._armed[queue]:
            self._armed[queue] = True
            heapq.heappush(self._events, (max(now, self._idle_from[queue]), 1.0 + progress, -1, queue))

    def _start(self, now: float, queue: int) -> None:
        """The head of a queue takes one turn at each of its resources; the next one starts when that is done."""
        free = self._free
        _, index, piece, slices = heapq.heappop(self._waiting[queue])
        move = self._moves[index]
        turn = move.nbytes / self._slices
        sent = 0.0
        for used, rate in self._held[queue]:
            done = max(now, free[used]) + turn / rate
            free[used] = done
            sent = max(sent, done)
        if slices > 1:
            # A chunk that has started is finished before any other of its queue.
            heapq.heappush(self._waiting[queue], (-1.0, index, piece, slices - 1))
        else:
            heapq.heappush(self._events, (sent + move.delay, 0.0, piece, index))
        if self._waiting[queue]:
            heapq.heappush(self._events, (sent, 1.0 + self._waiting[queue][0][0], -1, queue))
        else:
            self._idle_from[queue] = sent
            self._armed[queue] = False

    def _arrive(self, now: float, index: int, piece: int) -> None:
        for waiter in self._waiters[index]:
            self._missing[waiter][piece] -= 1
            if not self._missing[waiter][piece]:
                self._join(now, waiter, piece)
