"""Auxiliary routes: side roads for tree edges whose own link is busy, over links that the plan leaves idle.

In: Matrix and Load. Out: per (source, destination) tree edge up to MOST node-disjoint routes, best first.
A side road is one relay long: further ones cost more links than they relieve. It is offered only if both its links
are planned to be less than IDLE as busy as the edge itself: a plan without congestion gets none and pays nothing.
A sender takes one for a chunk when its own queue is long and the side's is empty (`takes_side`), as NetStorm does.
"""

from __future__ import annotations

import numpy as np

from gradwire.plan.matrix import Matrix
from gradwire.plan.model.load import Load, busy_times

LONG, EMPTY = 2, 1
MOST = 2
# A relayed chunk costs two links where the direct one costs one: half as busy is where it starts to pay.
IDLE = 0.5
# Planning must stay quick: beyond so many edges, only the busiest get side roads.
MOST_EDGES = 64
# Only edges at least this near to the busiest resource need relief.
BUSY = 0.6


def takes_side(primary_queue: int, side_queue: int) -> bool:
    """Whether a chunk leaves its own queue for the side road."""
    return primary_queue > LONG and side_queue < EMPTY


def side_routes(matrix: Matrix, load: Load) -> dict[tuple[int, int], tuple[tuple[int, ...], ...]]:
    """Routes over members, for the busiest edges that are direct links."""
    link, up, down = busy_times(matrix, load.links)
    worst = max(float(link.max()), float(up.max()), float(down.max()))
    candidates = np.argwhere((load.pairs > 0) & (link > BUSY * worst))
    order = np.argsort(-link[candidates[:, 0], candidates[:, 1]], kind="stable")[:MOST_EDGES]
    names = matrix.members
    found: dict[tuple[int, int], tuple[tuple[int, ...], ...]] = {}
    for source, destination in candidates[order].tolist():
        # How busy a relay would be at its worst: its two links, its own up- and downlink, the ends' other traffic.
        side = np.maximum(np.maximum(link[source], link[:, destination]), np.maximum(up, down))
        side = np.maximum(side, max(up[source], down[destination]))
        usable = (matrix.rate[source] > 0) & (matrix.rate[:, destination] > 0)
        usable &= side < IDLE * link[source, destination]
        usable[[source, destination]] = False
        best = [place for place in np.argsort(side, kind="stable").tolist() if usable[place]][:MOST]
        if best:
            found[names[source], names[destination]] = tuple(
                (names[source], names[relay], names[destination]) for relay in best
            )
    return found
