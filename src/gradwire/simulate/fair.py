"""Max-min fair rates: what flows get that share links, as a network of fair queues (or of well-behaved senders) gives.

In: which flows cross which resources (flat incidence arrays) and capacities. Out: a rate per flow.
Water filling, all local bottlenecks of a round at once: a resource that offers its flows no more than anything else
offers them is their bottleneck, wherever in the network it is.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]


def max_min(flow: Ints, resource: Ints, count: int, capacity: Floats, rounds: int = 1 << 30) -> Floats:
    """Rates of `count` flows; `flow[k]` crosses `resource[k]`. Every flow crosses at least one resource.

    With fewer `rounds` than the network has levels of bottlenecks, the rest settle for what they are offered then:
    never too much, a little less than they could have.
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
        # The least that any flow of a resource is offered anywhere: equal to its own offer at a local bottleneck.
        least = np.full(len(left), np.inf)
        np.minimum.at(least, resource, level[flow])
        full = (users > 0) & (last | (offer <= least * (1 + 1e-12)))
        settled = np.zeros(count, dtype=bool)
        settled[flow[full[resource]]] = True
        rate[settled] = level[settled]
        gone = settled[flow]
        left -= np.bincount(resource[gone], weights=rate[flow[gone]], minlength=len(left))
        np.maximum(left, 0.0, out=left)
        flow, resource = flow[~gone], resource[~gone]
    return rate
