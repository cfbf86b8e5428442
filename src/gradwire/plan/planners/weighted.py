"""Weighted star: every member sums a part whose size fits the capacity of its links.

A member that sums part s sends (n-1) s of results and 1-s of its own data; link i->j carries s_i + s_j. Shares are
found by multiplicative weights: step by step, the parts of members with the busiest links and uplinks are reduced.
"""

from __future__ import annotations

import numpy as np

from gradwire.plan.base import Draft
from gradwire.plan.job import ReductionJob
from gradwire.plan.matrix import Floats, Matrix
from gradwire.plan.planners.grow import inverse
from gradwire.plan.trees import star_of

# Steps and step length: with 30 and 100 sites the result is within 2.5 and 1 % of that of ten times as many steps.
# Large matrices get half the steps.
STEPS, LENGTH, STEEP = 24, 0.6, 12.0
LARGE = 400


def weighted_star(matrix: Matrix, job: ReductionJob) -> Draft:
    """Stars with shares by capacity; members whose part would be tiny sum none."""
    shares = _shares(matrix)
    floor = min(0.5 / matrix.size, 0.25 * job.chunk / job.nbytes)
    shares = np.where(shares < floor, 0.0, shares)
    shares /= shares.sum()
    roots = np.flatnonzero(shares)
    trees = tuple(star_of(int(root), matrix.size, float(shares[root])) for root in roots)
    return Draft(trees, f"{len(trees)} members sum parts that fit the capacity of their links")


def _shares(matrix: Matrix) -> Floats:
    size = matrix.size
    # Relayed pairs count as slow links, so that members with many of them get small parts.
    per_link = inverse(matrix.rate)
    slow = 4 * float(per_link[np.isfinite(per_link)].max())
    per_link = np.where(np.isfinite(per_link), per_link, slow)
    np.fill_diagonal(per_link, 0.0)
    both = np.maximum(per_link, per_link.T)
    per_node = np.maximum(1.0 / matrix.up, 1.0 / matrix.down)
    share = np.full(size, 1.0 / size)
    best, least = share, np.inf
    for _ in range(STEPS if size <= LARGE else STEPS // 2):
        link = (share[:, None] + share[None, :]) * both
        node = (1.0 + (size - 2) * share) * per_node
        busiest = max(float(link.max()), float(node.max()))
        if busiest < least:
            best, least = share, busiest
        weight = np.exp(STEEP * (link / busiest - 1.0)) * both
        price = weight.sum(axis=1) + np.exp(STEEP * (node / busiest - 1.0)) * (size - 2) * per_node
        share = share * np.exp(-LENGTH * (price / float(share @ price) - 1.0).clip(-1.0, 3.0))
        share = share / share.sum()
    return best
