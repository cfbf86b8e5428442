"""Routes: relays between members without a direct link, and members that cannot be reached at all.

In: a Matrix. Out: routes as index tuples, ends included. A direct link is always its own route; otherwise the route
with the fewest relays, and among those the least sum of 1/throughput, as IP routing would choose.
"""

from __future__ import annotations

import numpy as np

from gradwire.errors import LinkError
from gradwire.plan.matrix import Floats, Ints, Matrix

Route = tuple[int, ...]


class Routes:
    """Routes of one matrix; the routes from a source are searched when first needed."""

    def __init__(self, matrix: Matrix) -> None:
        self._rate = matrix.rate
        self._members = matrix.members
        self._before: dict[int, Ints] = {}

    def route(self, source: int, destination: int) -> Route:
        if self._rate[source, destination] > 0:
            return (source, destination)
        if source not in self._before:
            self._before[source] = fewest_hops(self._rate, source)
        before, path = self._before[source], [destination]
        while path[-1] != source:
            if before[path[-1]] < 0:
                names = self._members
                raise LinkError(
                    f"no route from member {names[source]} to member {names[destination]}; "
                    "add a link or remove one of them from the job"
                )
            path.append(int(before[path[-1]]))
        return tuple(reversed(path))


def fewest_hops(rate: Floats, source: int) -> Ints:
    """Predecessors on the paths from `source`: fewest hops, and among those the fastest path. -1: not reached."""
    size = len(rate)
    before = np.full(size, -1, dtype=np.intp)
    cost = np.full(size, np.inf)
    cost[source], before[source] = 0.0, source
    with np.errstate(divide="ignore"):
        hop = np.where(rate > 0, 1.0 / rate, np.inf)
    frontier = np.array([source])
    while frontier.size:
        costs = cost[frontier][:, None] + hop[frontier]
        best = costs.min(axis=0)
        fresh = np.flatnonzero((before < 0) & np.isfinite(best))
        cost[fresh] = best[fresh]
        before[fresh] = frontier[costs.argmin(axis=0)[fresh]]
        frontier = fresh
    before[source] = -1
    return before


def require_connected(matrix: Matrix) -> None:
    """LinkError that names every member that cannot send to, or cannot receive from, the others."""
    if matrix.size < 2:
        return
    linked = matrix.rate > 0
    # Searched from the best-connected member, so that a disconnected member is named and not all others.
    start = int((linked.sum(axis=0) + linked.sum(axis=1)).argmax())
    cannot_receive = ~_reached(linked, start)
    cannot_send = ~_reached(linked.T, start)
    if not cannot_receive.any() and not cannot_send.any():
        return
    parts = [
        f"{what}: {', '.join(str(matrix.members[row]) for row in np.flatnonzero(who)[:16])}"
        for what, who in (("cannot be reached", cannot_receive), ("cannot send to the others", cannot_send))
        if who.any()
    ]
    raise LinkError(f"members are disconnected ({'; '.join(parts)}); add a link or remove them from the job")


def _reached(linked: np.ndarray, start: int) -> np.ndarray:
    seen = np.zeros(len(linked), dtype=bool)
    seen[start] = True
    frontier = seen.copy()
    while frontier.any():
        frontier = linked[frontier].any(axis=0) & ~seen
        seen |= frontier
    return seen
