"""What the trees of a plan cost a member."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gradwire.errors import IntegrityError
from gradwire.plan.trees import tree_depth
from gradwire.sites.plan_shape import PlanShape, subtree_size
from gradwire.types import Plan, Tree

TREE = Tree(0, {0: 0, 1: 0, 2: 1, 3: 1}, 1.0)


def test_a_member_sums_the_gradients_of_its_subtree() -> None:
    assert [subtree_size(TREE, member) for member in range(4)] == [4, 3, 1, 1]


def test_the_depth_of_a_tree_counts_the_hops_of_its_longest_path() -> None:
    assert tree_depth(TREE) == 2
    assert tree_depth(Tree(5, {5: 5}, 1.0)) == 0
    with pytest.raises(IntegrityError, match="cycle"):
        tree_depth(Tree(0, {0: 1, 1: 0}, 1.0))


def test_relays_send_frames_too() -> None:
    direct = Plan(1, "kary", (TREE,), 0.0, "")
    relayed = replace(direct, routes={(2, 1): (2, 3, 1)})
    assert PlanShape.of(direct, 1) == PlanShape(frames=6 / 4, hops=4, energy_ratio=9.0)
    assert PlanShape.of(relayed, 1).frames == 7 / 4
