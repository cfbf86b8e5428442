"""Role: what one member has to do in each tree of a plan.

In: a Plan and a rank. Out: per tree whom to hear from, whom to send to, and for whom to relay. An edge that is no
direct link is a route (`Plan.routes`); every member of the route knows its part from the plan, so frames carry no
addresses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from gradwire.plan.trees import tree_depth
from gradwire.types import Plan, Tree


class Phase(IntEnum):
    """Sums go up, results come down, a leader's places go around before either."""

    UP = 0
    DOWN = 1
    MASK = 2


@dataclass(frozen=True, slots=True)
class TreeEdge:
    """One end of a tree edge: `end` names the edge (its child), `hop` is the neighbour on the way.

    An edge over relays is not direct; its hops are reliable, because only an edge's two ends can make up for loss.
    """

    end: int
    hop: int
    direct: bool = True


@dataclass(frozen=True, slots=True)
class RelayHop:
    """Pass on the frame of edge `end` from one neighbour to the next."""

    phase: Phase
    end: int
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class Role:
    """A member's part in one tree; `up` is None at the root. `depth` counts the hops of the longest way up."""

    root: int
    up: TreeEdge | None
    children: tuple[TreeEdge, ...]
    source: TreeEdge | None
    receivers: tuple[TreeEdge, ...]
    relays: tuple[RelayHop, ...]
    depth: int
    parents: Mapping[int, int]

    def path_to_root(self, member: int) -> list[int]:
        """The members that a frame from `member` passes on its way to the root, both included."""
        route = [member]
        while route[-1] != self.root:
            route.append(self.parents[route[-1]])
        return route

    @property
    def receives(self) -> int:
        """Frames that have to be held at once."""
        return len(self.children) + len(self.relays) + (self.source is not None)


def roles_of(plan: Plan, rank: int) -> tuple[Role, ...]:
    """One role per tree, in the plan's order."""
    return tuple(_role(plan, tree, rank) for tree in plan.trees)


def _role(plan: Plan, tree: Tree, rank: int) -> Role:
    ups = {(child, parent): child for child, parent in tree.parents.items() if child != parent}
    downs = {
        (source, receiver): receiver
        for receiver, source in (tree.sources or tree.parents).items()
        if receiver != source
    }
    relays: list[RelayHop] = []
    for phase, edges in ((Phase.UP, ups), (Phase.DOWN, downs)):
        for (first, last), end in edges.items():
            route = plan.routes.get((first, last), (first, last))
            if rank in route[1:-1]:
                place = route.index(rank)
                relays.append(RelayHop(phase, end, route[place - 1], route[place + 1]))
    upward = next((edge for edge in ups if edge[0] == rank), None)
    up = TreeEdge(rank, _first(plan, upward), upward not in plan.routes) if upward else None
    source = next((TreeEdge(rank, _last(plan, edge)) for edge, end in downs.items() if end == rank), None)
    children = tuple(TreeEdge(end, _last(plan, edge)) for edge, end in sorted(ups.items()) if edge[1] == rank)
    receivers = tuple(
        TreeEdge(end, _first(plan, edge), edge not in plan.routes)
        for edge, end in sorted(downs.items())
        if edge[0] == rank
    )
    return Role(tree.root, up, children, source, receivers, tuple(relays), tree_depth(tree), tree.parents)


def _first(plan: Plan, edge: tuple[int, int]) -> int:
    """The neighbour a sender hands the frame to."""
    return plan.routes.get(edge, edge)[1]


def _last(plan: Plan, edge: tuple[int, int]) -> int:
    """The neighbour a receiver hears the frame from."""
    return plan.routes.get(edge, edge)[-2]
