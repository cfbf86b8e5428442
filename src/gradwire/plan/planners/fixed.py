"""Planners that do not look at the network: the baselines that measured planners are compared with.

star     one member sums everything (MXNET-style parameter server); the lowest rank serves, as it does there
sharded  every member serves an equal part
ring     n chains that run the same way round: sums of part r travel r + 1, r + 2, ... to r, and the result goes on
         the same way, so each link carries 2 (n - 1) / n of the data; in the order of ranks, as in gloo and NCCL
kary     balanced k-ary tree (MLNET-style): member i sends to (i - 1) / k
"""

from __future__ import annotations

from gradwire.plan.base import Draft
from gradwire.plan.job import ReductionJob
from gradwire.plan.matrix import Matrix
from gradwire.plan.trees import star_of
from gradwire.types import Tree

# MLNET's evaluation, and the usual choice where a parent's downlink is the limit.
FAN_IN = 2


def star(matrix: Matrix, job: ReductionJob) -> Draft:
    """Everybody sends all to the first member and hears back from it."""
    return Draft((star_of(0, matrix.size, 1.0),), f"member {matrix.members[0]} serves all others")


def sharded_star(matrix: Matrix, job: ReductionJob) -> Draft:
    """Every member serves an equal part (sharded parameter server; direct reduce-scatter and all-gather)."""
    size = matrix.size
    return Draft(
        tuple(star_of(root, size, 1 / size) for root in range(size)), f"each of {size} members serves an equal part"
    )


def ring(matrix: Matrix, job: ReductionJob) -> Draft:
    """One chain per member, in the order of ranks."""
    size = matrix.size
    after = {member: (member + 1) % size for member in range(size)}
    before = {member: (member - 1) % size for member in range(size)}
    trees = tuple(Tree(root, after | {root: root}, 1 / size, before | {root: root}) for root in range(size))
    return Draft(trees, f"{size} chains around the ring of ranks")


def kary(matrix: Matrix, job: ReductionJob) -> Draft:
    """One balanced tree in the order of ranks."""
    parents = {member: max(0, (member - 1) // FAN_IN) for member in range(matrix.size)}
    return Draft((Tree(0, parents, 1.0),), f"one balanced tree, {FAN_IN} children each, in the order of ranks")
