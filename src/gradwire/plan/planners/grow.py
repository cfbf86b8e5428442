"""Tree growth: the search that all planners with measurements use.

In: a cost per directed link (seconds, or a price), roots, and a weight of depth. Out: parent arrays.
Prim and Dijkstra are the extremes of one family (Alpert et al. 1995): a member joins where `price + depth * distance`
is least, `distance` being its parent's distance to the root; depth 1 gives cheapest paths, 0 the cheapest tree. The
trees of all roots grow together, one array operation per step.
"""

from __future__ import annotations

import numpy as np

from gradwire.plan.matrix import Floats, Ints


def grow(price: Floats, roots: Ints, depth: float, crowd: Floats | None = None) -> tuple[Ints, Floats]:
    """Trees from each root outwards, `price[parent, child]` per link: (parents, summed price), one row per root.

    `price` may be a stack of matrices (k, n, n): then trees are grown for every root in each of them, stack first.
    `crowd[parent]` is the extra cost of each further child of one parent (its uplink fills up).
    A member without any link makes the summed price infinite.
    """
    size = price.shape[-1]
    stack = price.reshape(-1, size)
    deep = len(stack) // size
    base = np.repeat(np.arange(deep) * size, len(roots))
    roots = np.tile(roots, deep)
    more = None if crowd is None else np.ascontiguousarray(crowd).reshape(-1)
    count = len(roots)
    rows = np.arange(count)
    key = stack[base + roots]
    parents = np.repeat(roots[:, None], size, axis=1)
    distance = np.zeros((count, size))
    # Members of the tree keep an infinite key and are never chosen again.
    inside = np.zeros((count, size))
    inside[rows, roots] = np.inf
    key[rows, roots] = np.inf
    total = np.zeros(count)
    for _ in range(size - 1):
        pick = key.argmin(axis=1)
        total += key[rows, pick]
        above = parents[rows, pick]
        reached = distance[rows, above] + stack[base + above, pick]
        distance[rows, pick] = reached
        inside[rows, pick] = np.inf
        if more is not None:
            key += (parents == above[:, None]) * more[base + above][:, None]
        key[rows, pick] = np.inf
        offered = stack[base + pick] + inside
        if depth:
            offered += (depth * reached)[:, None]
        better = offered < key
        np.copyto(key, offered, where=better)
        np.copyto(parents, pick[:, None], where=better)
    return parents, total


def inverse(rate: Floats) -> Floats:
    """Seconds per byte; infinite where there is no link."""
    with np.errstate(divide="ignore"):
        return np.where(rate > 0, 1.0 / rate, np.inf)
