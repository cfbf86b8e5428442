"""Fair: max-min fair rates of flows that share links, as fair queues or well-behaved senders give them.

In: which flows cross which resources (flat incidence arrays) and capacities. Out: a rate per flow.
Water filling, with all local bottlenecks of a round at once: a resource is the bottleneck of its flows if no other
resource offers any of them less.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]


def max_min(flow: Ints, resource: Ints, count: int, capacity: Floats, rounds: int = 1 << 30) -> Floats:
    """Rates of `count` flows; `flow[k]` crosses `resource[k]`. Every flow crosses at least one resource.

    If there are fewer `rounds` than levels of bottlenecks, the other flows get their last offer: never too much, and a
    little less than possible.
    """
    rate = np.zeros(count)
    left = capacity.copy()
    for last in (turn + 1 == rounds for turn in range(rounds)):
        if not flow.size:
            break
        users = np.bincount(resource, minlength=len(left))
        with np.errstate(divide="ignore", invalid="ignore"):
            offer = np.where(users > 0, left / users, np.inf)
        level = np.full(count, np.inf)
        np.minimum.at(level, flow, offer[resource])
        # The smallest offer to any flow of a resource: equal to its own offer at a local bottleneck.
        least = np.full(len(left), np.inf)
        np.minimum.at(least, resource, level[flow])
        full = (users > 0) & (last | (offer <= least * (1 + 1e-12)))
        done = np.zeros(count, dtype=bool)
        done[flow[full[resource]]] = True
        rate[done] = level[done]
        fixed = done[flow]
        left -= np.bincount(resource[fixed], weights=rate[flow[fixed]], minlength=len(left))
        np.maximum(left, 0.0, out=left)
        flow, resource = flow[~fixed], resource[~fixed]
    return rate
