"""Pairwise merge (as in TSEngine): in each round, members are paired along the fastest links and merge their sums.

1. Among members that still hold a sum, take the fastest pair (both directions counted), then the next, and so on.
2. The receiver of each pair stays; repeat until one member holds everything: it is the root.
3. The result returns along the same edges. There is one tree, and the sharing of links is not taken into account.
"""

from __future__ import annotations

import numpy as np

from gradwire.plan.base import Draft
from gradwire.plan.job import ReductionJob
from gradwire.plan.matrix import Matrix
from gradwire.types import Tree


def pairwise(matrix: Matrix, job: ReductionJob) -> Draft:
    """One tree of merges; a pair without a link is used (and relayed) only when no other pair is left."""
    rate = matrix.effective()
    with np.errstate(divide="ignore"):
        round_trip_rate = np.minimum(1.0 / (1.0 / rate + 1.0 / rate.T), np.inf)
    parents = {member: member for member in range(matrix.size)}
    holders = np.arange(matrix.size)
    rounds = 0
    while len(holders) > 1:
        rounds += 1
        merged = _merge(round_trip_rate[np.ix_(holders, holders)])
        for child, parent in merged:
            parents[int(holders[child])] = int(holders[parent])
        gone = {child for child, _ in merged}
        holders = holders[[index for index in range(len(holders)) if index not in gone]]
    root = int(holders[0])
    reason = f"fastest pairs merge first, in {rounds} rounds; member {matrix.members[root]} is the root"
    return Draft((Tree(root, parents, 1.0),), reason)


def _merge(speed: np.ndarray) -> list[tuple[int, int]]:
    """Pairs (sender, receiver) of one round, fastest first; the better-connected of a pair receives."""
    size = len(speed)
    upper = np.triu_indices(size, 1)
    order = np.argsort(-speed[upper], kind="stable")
    used = np.zeros(size, dtype=bool)
    total = speed.sum(axis=1)
    pairs: list[tuple[int, int]] = []
    for first, second in zip(upper[0][order].tolist(), upper[1][order].tolist(), strict=True):
        if used[first] or used[second] or (speed[first, second] <= 0 and pairs):
            continue
        used[first] = used[second] = True
        pairs.append((first, second) if total[second] > total[first] else (second, first))
        if used.sum() >= size - 1 or speed[first, second] <= 0:
            break
    return pairs
