"""Tree functions: build and check trees, and convert them to parent arrays.

In: Trees over members, or parent arrays over indices. Out: Trees, parent arrays, sizes of subtrees, depths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gradwire.errors import IntegrityError
from gradwire.plan.matrix import Floats, Ints
from gradwire.types import Tree


def star_of(root: int, size: int, share: float) -> Tree:
    """A tree in which all members send to the root."""
    return Tree(root, dict.fromkeys(range(size), root), share)


def tree_of(root: int, parents: Ints, share: float, sources: Ints | None = None) -> Tree:
    """A Tree from parent arrays; `sources` equal to `parents` is omitted."""
    down = {} if sources is None or np.array_equal(parents, sources) else dict(enumerate(sources.tolist()))
    return Tree(int(root), dict(enumerate(parents.tolist())), share, down)


def relabel(tree: Tree, members: Sequence[int]) -> Tree:
    """The same tree over members instead of indices."""
    if members == tuple(range(len(members))):
        return tree
    return Tree(members[tree.root], _named(tree.parents, members), tree.share, _named(tree.sources, members))


def _named(edges: Mapping[int, int], members: Sequence[int]) -> dict[int, int]:
    return {members[child]: members[parent] for child, parent in edges.items()}


def sources_of(tree: Tree) -> dict[int, int]:
    """The member that each member receives the result from."""
    return tree.sources or tree.parents


def children_of(edges: Mapping[int, int]) -> dict[int, list[int]]:
    """Parent -> children in ascending order; every member has an entry."""
    children: dict[int, list[int]] = {member: [] for member in edges}
    for child in sorted(edges):
        if edges[child] != child:
            children[edges[child]].append(child)
    return children


def tree_depth(tree: Tree) -> int:
    """Hops of the longest path to the root."""
    children, level = children_of(tree.parents), [tree.root]
    for depth in range(len(tree.parents)):
        level = [child for member in level for child in children[member]]
        if not level:
            return depth
    raise IntegrityError(f"tree of root {tree.root}: its edges form a cycle")


def parent_array(edges: Mapping[int, int]) -> Ints:
    """Parents of a tree over indices, as an array."""
    count = len(edges)
    parents = np.empty(count, dtype=np.intp)
    parents[np.fromiter(edges, np.intp, count)] = np.fromiter(edges.values(), np.intp, count)
    return parents


def path_sums(parents: Ints, root: int, hop: Floats) -> tuple[Floats, Ints]:
    """Per member: the sum of `hop` along its path to the root, and its depth, by pointer doubling.

    IntegrityError where members have no path to the root.
    """
    sums = np.array(hop, dtype=np.float64)
    sums[root] = 0.0
    depth = np.ones(len(parents), dtype=np.intp)
    depth[root] = 0
    above = parents.copy()
    for _ in range(max(1, len(parents).bit_length())):
        if (above == root).all():
            break
        sums = sums + sums[above]
        depth = depth + depth[above]
        above = above[above]
    if parents[root] != root or (above != root).any():
        lost = np.flatnonzero(above != root).tolist()
        raise IntegrityError(f"tree of root {root}: members {lost} have no path to the root")
    return sums, depth


def subtree_sizes(parents: Ints, depth: Ints) -> Ints:
    """Number of contributions in the sum that each member sends, its own included."""
    sizes = np.ones(len(parents), dtype=np.intp)
    for level in range(int(depth.max()), 0, -1):
        here = np.flatnonzero(depth == level)
        np.add.at(sizes, parents[here], sizes[here])
    return sizes
