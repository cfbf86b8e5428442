"""The least time any set of trees needs on a small network, by linear programming (a test oracle; scipy).

For every root r, x[r] is the part of the data summed there. Trees towards r can be packed at rate x[r] exactly when,
within link capacities reserved for them, every member can send a flow x[r] to r (Edmonds 1973); likewise away from r.
So: minimise T subject to flows fitting reservations and reservations fitting T times the links. Delays are left out.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_matrix

from gradwire.plan.matrix import Matrix


def least_time(matrix: Matrix, nbytes: float) -> float:
    """Seconds; no plan can be faster, and plans with enough trees and chunks approach it."""
    size, edges = matrix.size, [tuple(edge) for edge in np.argwhere(matrix.rate > 0).tolist()]
    count = len(edges)
    # Columns: T, x[r], reserved[r, way, edge], flow[r, way, member, edge].
    ways, rest = 2, size - 1
    share = 1
    reserved = share + size
    flow = reserved + size * ways * count
    columns = flow + size * ways * rest * count
    less: list[tuple[int, int, float]] = []
    equal: list[tuple[int, int, float]] = []
    rows = exact = 0
    for root in range(size):
        for way in range(ways):
            hold = reserved + (root * ways + way) * count
            for place, member in enumerate(other for other in range(size) if other != root):
                base = flow + ((root * ways + way) * rest + place) * count
                start, end = (member, root) if way == 0 else (root, member)
                for edge in range(count):
                    less += [(rows, base + edge, 1.0), (rows, hold + edge, -1.0)]
                    rows += 1
                for node in range(size):
                    if node == end:
                        continue
                    for edge, (source, destination) in enumerate(edges):
                        if node in (source, destination):
                            equal.append((exact, base + edge, 1.0 if node == source else -1.0))
                    if node == start:
                        equal.append((exact, share + root, -1.0))
                    exact += 1
    groups = [([edge], matrix.rate[pair]) for edge, pair in enumerate(edges)]
    for node in range(size):
        groups.append(([e for e, pair in enumerate(edges) if pair[0] == node], matrix.up[node]))
        groups.append(([e for e, pair in enumerate(edges) if pair[1] == node], matrix.down[node]))
    unit = float(matrix.rate.max())
    for members, capacity in groups:
        if not np.isfinite(capacity):
            continue
        less += [(rows, reserved + block * count + edge, 1.0) for block in range(size * ways) for edge in members]
        less.append((rows, 0, -capacity / unit))
        rows += 1
    equal += [(exact, share + root, 1.0) for root in range(size)]
    target = np.zeros(exact + 1)
    target[exact] = 1.0
    goal = np.zeros(columns)
    goal[0] = 1.0
    found = linprog(
        goal, A_ub=_sparse(less, rows, columns), b_ub=np.zeros(rows),
        A_eq=_sparse(equal, exact + 1, columns), b_eq=target, method="highs",
    )  # fmt: skip
    assert found.success, found.message
    return float(found.fun) * nbytes / unit


def _sparse(entries: list[tuple[int, int, float]], rows: int, columns: int) -> coo_matrix:
    row, column, value = zip(*entries, strict=True)
    return coo_matrix((value, (row, column)), shape=(rows, columns)).tocsr()
