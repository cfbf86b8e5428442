"""Who relays for whom: the way between two members that share no direct link, and who cannot be reached at all.

In: a Matrix. Out: routes as index tuples, ends included. A direct link is always its own route; otherwise the fewest
relays, and among those the least summed 1/throughput: what an IP underlay or a firewall-minded person would do.
"""

from __future__ import annotations

import numpy as np

from gradwire.errors import LinkError
from gradwire.plan.matrix import Floats, Ints, Matrix

Route = tuple[int, ...]


class Routes:
    """Routes of one matrix; the way from a source is searched when it is first asked for."""

    def __init__(self, matrix: Matrix) -> None:
        self._rate = matrix.rate
        self._members = matrix.members
        self._before: dict[int, Ints] = {}

    def route(self, source: int, destination: int) -> Route:
        if self._rate[source, destination] > 0:
            return (source, destination)
        if source not in self._before:
            self._before[source] = fewest_hops(self._rate, source)
        before, way = self._before[source], [destination]
        while way[-1] != source:
            if before[way[-1]] < 0:
                names = self._members
                raise LinkError(f"no route from member {names[source]} to member {names[destination]}")
            way.append(int(before[way[-1]]))
        return tuple(reversed(way))


def fewest_hops(rate: Floats, source: int) -> Ints:
    """Predecessors on the way from `source`: level by level, and within a level the fastest way. -1: not reached."""
    size = len(rate)
    before = np.full(size, -1, dtype=np.intp)
    cost = np.full(size, np.inf)
    cost[source], before[source] = 0.0, source
    with np.errstate(divide="ignore"):
        hop = np.where(rate > 0, 1.0 / rate, np.inf)
    frontier = np.array([source])
    while frontier.size:
        ways = cost[frontier][:, None] + hop[frontier]
        best = ways.min(axis=0)
        fresh = np.flatnonzero((before < 0) & np.isfinite(best))
        cost[fresh] = best[fresh]
        before[fresh] = frontier[ways.argmin(axis=0)[fresh]]
        frontier = fresh
    before[source] = -1
    return before


def require_connected(matrix: Matrix) -> None:
    """LinkError naming every member that cannot send to, or cannot hear from, the rest."""
    if matrix.size < 2:
        return
    linked = matrix.rate > 0
    # Measured from the best-connected member, so that the one cut off is named and not everybody else.
    start = int((linked.sum(axis=0) + linked.sum(axis=1)).argmax())
    deaf = ~_reached(linked, start)
    mute = ~_reached(linked.T, start)
    if not deaf.any() and not mute.any():
        return
    parts = [
        f"{what}: {', '.join(str(matrix.members[place]) for place in np.flatnonzero(who)[:16])}"
        for what, who in (("cannot be reached", deaf), ("cannot send to the others", mute))
        if who.any()
    ]
    raise LinkError(f"members are cut off ({'; '.join(parts)}); open a link or leave them out of the job")


def _reached(linked: np.ndarray, start: int) -> np.ndarray:
    seen = np.zeros(len(linked), dtype=bool)
    seen[start] = True
    frontier = seen.copy()
    while frontier.any():
        frontier = linked[frontier].any(axis=0) & ~seen
        seen |= frontier
    return seen
