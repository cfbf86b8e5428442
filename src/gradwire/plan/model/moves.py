"""Moves of a plan for the schedule: one per tree edge and direction, over numbered resources.

In: Matrix, Flows, ReductionJob, Routes. Out: (moves, capacities). Infinite up- and downlinks are omitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from gradwire.plan.job import ReductionJob
from gradwire.plan.matrix import Matrix
from gradwire.plan.model.load import Flows
from gradwire.plan.model.routes import Routes
from gradwire.plan.model.schedule import Move


def as_moves(
    matrix: Matrix, flows: Sequence[Flows], job: ReductionJob, routes: Routes
) -> tuple[list[Move], list[float]]:
    """Moves of all trees; of each tree, up edges before down edges."""
    numbering = _Numbering(matrix, routes)
    moves: list[Move] = []
    for flow in flows:
        pieces, children = job.chunks(flow.share), flow.child.tolist()
        up_at = {child: len(moves) + index for index, child in enumerate(children)}
        down_at = {child: index + len(children) for child, index in up_at.items()}
        below: dict[int, list[int]] = {}
        for child, parent in zip(children, flow.parent.tolist(), strict=True):
            below.setdefault(parent, []).append(up_at[child])
        for child, parent, nbytes in zip(children, flow.parent.tolist(), flow.up_bytes.tolist(), strict=True):
            crossed, delay = numbering.pair(child, parent)
            piece = nbytes / pieces
            moves.append(Move(crossed, piece, delay + piece / job.aggregation, pieces, tuple(below.get(child, ()))))
        for child, source in zip(children, flow.source.tolist(), strict=True):
            crossed, delay = numbering.pair(source, child)
            needs = tuple(below[flow.root]) if source == flow.root else (down_at[source],)
            moves.append(Move(crossed, flow.down_bytes / pieces, delay, pieces, needs))
    return moves, numbering.capacity


class _Numbering:
    """Resources by number, and for each pair of members the resources it uses and its one-way delay."""

    def __init__(self, matrix: Matrix, routes: Routes) -> None:
        self._matrix, self._routes = matrix, routes
        self._resources: dict[tuple[str, int, int], int] = {}
        self._pairs: dict[tuple[int, int], tuple[tuple[int, ...], float]] = {}
        self.capacity: list[float] = []

    def pair(self, source: int, destination: int) -> tuple[tuple[int, ...], float]:
        if (source, destination) not in self._pairs:
            matrix, crossed, delay = self._matrix, [], 0.0
            for a, b in pairwise(self._routes.route(source, destination)):
                crossed.append(self._resource("link", a, b, matrix.rate[a, b]))
                crossed += [self._resource("up", a, a, matrix.up[a])] if np.isfinite(matrix.up[a]) else []
                crossed += [self._resource("down", b, b, matrix.down[b])] if np.isfinite(matrix.down[b]) else []
                delay += float(matrix.rtprop[a, b]) / 2
            self._pairs[source, destination] = tuple(crossed), delay
        return self._pairs[source, destination]

    def _resource(self, kind: str, first: int, second: int, rate: float) -> int:
        key = (kind, first, second)
        if key not in self._resources:
            self._resources[key] = len(self.capacity)
            self.capacity.append(float(rate))
        return self._resources[key]
