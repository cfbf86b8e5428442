"""Ring: n chains, one per member, that all run the same way round (ring all-reduce: reduce-scatter, all-gather).

Sums of part r travel r+1, r+2, ... to r; the result goes on the same way, so each link carries 2 (n-1)/n of the data.
The order is the ranks', as in gloo and NCCL, whatever the network looks like: that is the baseline.
"""

from __future__ import annotations

from gradwire.flow import Tree
from gradwire.plan.base import Draft
from gradwire.plan.job import Job
from gradwire.plan.matrix import Matrix


def ring(matrix: Matrix, job: Job) -> Draft:
    """One chain per member, in the order of ranks."""
    size = matrix.size
    after = {member: (member + 1) % size for member in range(size)}
    before = {member: (member - 1) % size for member in range(size)}
    trees = tuple(Tree(root, after | {root: root}, 1 / size, before | {root: root}) for root in range(size))
    return Draft(trees, f"{size} chains around the ring of ranks")
