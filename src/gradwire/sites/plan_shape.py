"""PlanShape: what the trees of a plan cost one member: frames per piece, hops, and the energy of what it encodes."""

from __future__ import annotations

from dataclasses import dataclass

from gradwire.plan.trees import children_of, sources_of, tree_depth
from gradwire.types import Plan, Tree


@dataclass(frozen=True, slots=True)
class PlanShape:
    """`frames` that a member sends for a piece, on average; `hops` of the longest path up and down; `energy_ratio` of
    what the member encodes (the sum of its subtree) to its own gradient."""

    frames: float = 2.0
    hops: int = 2
    energy_ratio: float = 1.0

    @classmethod
    def of(cls, plan: Plan, member: int) -> PlanShape:
        frames = sum(tree.share * _frames(plan, tree) for tree in plan.trees)
        energy_ratio = sum(tree.share * subtree_size(tree, member) ** 2 for tree in plan.trees)
        hops = 2 * max(tree_depth(tree) for tree in plan.trees)
        return cls(frames / len(plan.trees[0].parents), hops, energy_ratio)


def subtree_size(tree: Tree, member: int) -> int:
    """How many members' gradients a member's sum contains, its own included."""
    children, waiting, count = children_of(tree.parents), [member], 0
    while waiting:
        count += 1
        waiting += children[waiting.pop()]
    return count


def _frames(plan: Plan, tree: Tree) -> int:
    """Frames that all members together send for one piece of a tree; each relay sends one more."""
    up = [(child, parent) for child, parent in tree.parents.items() if child != parent]
    down = [(source, member) for member, source in sources_of(tree).items() if member != source]
    return sum(len(plan.routes.get(edge, edge)) - 1 for edge in up + down)
