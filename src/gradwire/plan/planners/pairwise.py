"""Pairwise merge (TSEngine-style): members pair up along the fastest links, merge, and the merged pair up again.

1. Among members that still hold a sum, take the fastest pair (both directions counted), then the next, and so on.
2. The receiver of each pair goes on; repeat until one member holds everything: it is the root.
3. The result goes back the same way. Links are chosen by measured speed, one tree at a time: no sharing is foreseen.
"""

from __future__ import annotations

import numpy as np

from gradwire.plan.base import Draft
from gradwire.plan.job import ReductionJob
from gradwire.plan.matrix import Matrix
from gradwire.types import Tree


def pairwise(matrix: Matrix, job: ReductionJob) -> Draft:
    """One tree of merges; a pair without a link waits for a later round, and is relayed only when nothing is left."""
    rate = matrix.effective()
    with np.errstate(divide="ignore"):
        there_and_back = np.minimum(1.0 / (1.0 / rate + 1.0 / rate.T), np.inf)
    parents = {member: member for member in range(matrix.size)}
    holders = np.arange(matrix.size)
    rounds = 0
    while len(holders) > 1:
        rounds += 1
        merged = _merge(there_and_back[np.ix_(holders, holders)])
        for child, parent in merged:
            parents[int(holders[child])] = int(holders[parent])
        gone = {child for child, _ in merged}
        holders = holders[[place for place in range(len(holders)) if place not in gone]]
    root = int(holders[0])
    return Draft(
        (Tree(root, parents, 1.0),), f"fastest pairs merge first, {rounds} rounds, member {root} ends with all"
    )


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
