"""Fixed planners: topologies that ignore measurements; the baselines for the other planners.

star     the lowest rank sums everything (parameter server, as in MXNET)
sharded  every member sums an equal part
ring     n chains in the same direction: the sum of part r travels r + 1, r + 2, ... to r, and the result continues in
         that direction, so each link carries 2 (n - 1) / n of the data; in rank order, as in gloo and NCCL
kary     balanced k-ary tree (as in MLNET): member i sends to (i - 1) / k
"""

from __future__ import annotations

from gradwire.plan.base import Draft
from gradwire.plan.job import ReductionJob
from gradwire.plan.matrix import Matrix
from gradwire.plan.trees import star_of
from gradwire.types import Tree

# As in MLNET's evaluation; the usual choice where a parent's downlink is the limit.
FAN_IN = 2


def star(matrix: Matrix, job: ReductionJob) -> Draft:
    """All members send everything to the first member and receive the result from it."""
    return Draft((star_of(0, matrix.size, 1.0),), f"member {matrix.members[0]} sums for all others")


def sharded_star(matrix: Matrix, job: ReductionJob) -> Draft:
    """Every member sums an equal part (sharded parameter server; direct reduce-scatter and all-gather)."""
    size = matrix.size
    return Draft(
        tuple(star_of(root, size, 1 / size) for root in range(size)), f"each of {size} members sums an equal part"
    )


def ring(matrix: Matrix, job: ReductionJob) -> Draft:
    """One chain per member, in rank order."""
    size = matrix.size
    after = {member: (member + 1) % size for member in range(size)}
    before = {member: (member - 1) % size for member in range(size)}
    trees = tuple(Tree(root, after | {root: root}, 1 / size, before | {root: root}) for root in range(size))
    return Draft(trees, f"{size} chains around a ring in rank order")


def kary(matrix: Matrix, job: ReductionJob) -> Draft:
    """One balanced tree in rank order."""
    parents = {member: max(0, (member - 1) // FAN_IN) for member in range(matrix.size)}
    return Draft((Tree(0, parents, 1.0),), f"one balanced tree with {FAN_IN} children per member, in rank order")
