"""Star: one member sums everything (MXNET-style parameter server). The lowest rank serves, as it does there."""

from __future__ import annotations

from gradwire.plan.base import Draft
from gradwire.plan.job import Job
from gradwire.plan.matrix import Matrix
from gradwire.plan.trees import star_of


def star(matrix: Matrix, job: Job) -> Draft:
    """Everybody sends all to the first member and hears back from it."""
    return Draft((star_of(0, matrix.size, 1.0),), f"member {matrix.members[0]} serves all others")


def sharded_star(matrix: Matrix, job: Job) -> Draft:
    """Every member serves an equal part (sharded parameter server; direct reduce-scatter and all-gather)."""
    size = matrix.size
    return Draft(
        tuple(star_of(root, size, 1 / size) for root in range(size)), f"each of {size} members serves an equal part"
    )
