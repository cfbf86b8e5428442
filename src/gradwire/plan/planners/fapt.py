"""FAPT as published (NetStorm, ToN 2024): multi-root fastest aggregation path trees, shares by root quality.

1. The cost of a path to a root is the sum over its hops of 1/throughput; a root's tree is the union of cheapest paths.
2. Quality of a root = 1 / sum over hop depth k of (1 / slowest link at depth k).
3. The model is cut into chunks, which are assigned to the roots in proportion to their quality.
Each tree is computed as if it were alone: the load of other trees is ignored. `loadaware` takes it into account.
"""

from __future__ import annotations

import numpy as np

from gradwire.plan.base import Draft
from gradwire.plan.job import ReductionJob
from gradwire.plan.matrix import Floats, Ints, Matrix
from gradwire.plan.planners.grow import grow, inverse
from gradwire.plan.trees import path_sums, tree_of
from gradwire.types import Tree

# The published system has 9 sites and 9 roots; beyond some tens of roots each share is less than a chunk.
MOST_ROOTS = 32


def fapt(matrix: Matrix, job: ReductionJob) -> Draft:
    """A tree per root, chunks assigned by quality."""
    trees = _trees(matrix, min(matrix.size, MOST_ROOTS))
    quality = np.array([_quality(matrix, tree) for tree in trees])
    shares = _assigned(quality, job.chunks(1.0))
    used = tuple(
        Tree(tree.root, tree.parents, share) for tree, share in zip(trees, shares.tolist(), strict=True) if share > 0
    )
    best = matrix.members[trees[int(quality.argmax())].root]
    return Draft(used, f"{len(used)} roots by quality, the best is {best}")


def fapt_single(matrix: Matrix, job: ReductionJob) -> Draft:
    """The best root alone."""
    trees = _trees(matrix, min(matrix.size, MOST_ROOTS))
    best = max(trees, key=lambda tree: _quality(matrix, tree))
    return Draft((Tree(best.root, best.parents, 1.0),), f"member {matrix.members[best.root]} has the best quality")


def _trees(matrix: Matrix, count: int) -> list[Tree]:
    toward = inverse(matrix.effective()).T
    rough = np.where(np.isfinite(toward), toward, 0.0).sum(axis=1) / np.maximum(1, np.isfinite(toward).sum(axis=1))
    roots = np.sort(np.argsort(rough, kind="stable")[:count])
    parents, _ = grow(toward, roots, depth=1.0)
    return [tree_of(int(root), row, 1.0) for root, row in zip(roots, parents, strict=True)]


def _quality(matrix: Matrix, tree: Tree) -> float:
    parents: Ints = np.array([tree.parents[member] for member in range(matrix.size)])
    _, depth = path_sums(parents, tree.root, np.zeros(matrix.size))
    hop: Floats = inverse(matrix.effective())[np.arange(matrix.size), parents]
    return 1.0 / sum(float(hop[depth == level].max()) for level in range(1, int(depth.max()) + 1))


def _assigned(quality: Floats, chunks: int) -> Floats:
    """Whole chunks by largest remainder, as shares."""
    want = quality / quality.sum() * chunks
    have = np.floor(want)
    for root in np.argsort(have - want, kind="stable")[: chunks - int(have.sum())]:
        have[root] += 1
    shares: Floats = have / chunks
    return shares
