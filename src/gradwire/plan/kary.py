"""Balanced k-ary tree (MLNET-style): member i sends to (i-1)/k, whatever the network looks like."""

from __future__ import annotations

from gradwire.flow import Tree
from gradwire.plan.base import Draft
from gradwire.plan.job import Job
from gradwire.plan.matrix import Matrix

# MLNET's evaluation, and the usual choice where a parent's downlink is the limit.
FAN_IN = 2


def kary(matrix: Matrix, job: Job) -> Draft:
    """One balanced tree in the order of ranks."""
    parents = {member: max(0, (member - 1) // FAN_IN) for member in range(matrix.size)}
    return Draft((Tree(0, parents, 1.0),), f"one balanced tree, {FAN_IN} children each, in the order of ranks")
