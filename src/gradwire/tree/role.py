"""Role: the neighbours of one member in each tree of a plan.

In: a Plan and a rank. Out: per tree from whom to receive, to whom to send, and which frames to relay. An edge without a
direct link follows a route (`Plan.routes`); every member of the route knows its part from the plan, so frames carry no
addresses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from gradwire.plan.trees import tree_depth
from gradwire.types import Plan, Tree


class Phase(IntEnum):
    """Sums go up, results come down; before both, MASK distributes the indices that the round's leader selected."""

    UP = 0
    DOWN = 1
    MASK = 2


@dataclass(frozen=True, slots=True)
class TreeEdge:
    """One end of a tree edge: `end` identifies the edge (its child), `hop` is the next member on its route.

    An edge over relays is not direct. Its hops are reliable, because only the two ends of an edge can correct a loss.
    """

    end: int
    hop: int
    direct: bool = True


@dataclass(frozen=True, slots=True)
class RelayHop:
    """Forward the frame of edge `end` from `before` to `after`."""

    phase: Phase
    end: int
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class Role:
    """A member's part in one tree; `up` is None at the root. `depth` is the longest path to the root, in hops."""

    root: int
    up: TreeEdge | None
    children: tuple[TreeEdge, ...]
    source: TreeEdge | None
    receivers: tuple[TreeEdge, ...]
    relays: tuple[RelayHop, ...]
    depth: int
    parents: Mapping[int, int]

    def path_to_root(self, member: int) -> list[int]:
        """The members on the path of a frame from `member` to the root, both included."""
        route = [member]
        while route[-1] != self.root:
            route.append(self.parents[route[-1]])
        return route

    @property
    def receives(self) -> int:
        """Number of frames that may be buffered at the same time."""
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
    """The next hop of an edge, at its sender."""
    return plan.routes.get(edge, edge)[1]


def _last(plan: Plan, edge: tuple[int, int]) -> int:
    """The last hop of an edge, at its receiver."""
    return plan.routes.get(edge, edge)[-2]
