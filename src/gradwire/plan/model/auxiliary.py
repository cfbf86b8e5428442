"""Auxiliary (side) routes: one-relay paths for tree edges whose link is busy, over links that the plan leaves idle.

In: Matrix and Load. Out: per (source, destination) tree edge up to MOST node-disjoint routes, best first.
A side route has one relay: longer ones load more links than they relieve. It is included only if both its links are
planned to be less than IDLE as busy as the edge itself: a plan without congestion has none and pays nothing.
A sender uses one for a chunk when its own queue is long and the side route's is empty (`takes_side`), as in NetStorm.
"""

from __future__ import annotations

import numpy as np

from gradwire.plan.matrix import Matrix
from gradwire.plan.model.load import Load, busy_times

# A queue of more than LONG chunks is long, one of fewer than EMPTY is empty.
LONG, EMPTY = 2, 1
# Side routes per edge.
MOST = 2
# A relayed chunk loads two links instead of one, so they must be less than half as busy.
IDLE = 0.5
# Bounds the planning time: only so many of the busiest edges get side routes.
MOST_EDGES = 64
# Only edges at least this busy, relative to the busiest resource, get side routes.
BUSY = 0.6


def takes_side(primary_queue: int, side_queue: int) -> bool:
    """Whether a chunk is sent by the side route instead of its own queue."""
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
        # The busiest resource of each relay: its two links, its up- and downlink, the ends' uplink and downlink.
        side = np.maximum(np.maximum(link[source], link[:, destination]), np.maximum(up, down))
        side = np.maximum(side, max(up[source], down[destination]))
        usable = (matrix.rate[source] > 0) & (matrix.rate[:, destination] > 0)
        usable &= side < IDLE * link[source, destination]
        usable[[source, destination]] = False
        best = [relay for relay in np.argsort(side, kind="stable").tolist() if usable[relay]][:MOST]
        if best:
            found[names[source], names[destination]] = tuple(
                (names[source], names[relay], names[destination]) for relay in best
            )
    return found
