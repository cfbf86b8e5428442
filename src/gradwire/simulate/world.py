"""World: a plan as the simulators need it: lanes (ordered pairs) over resources, and legs that wait for each other.

In: a Matrix, a Plan, a ReductionJob. Out: a World of lists. A leg is one tree edge in one direction; its chunks queue
in the lane of its pair. A lane without a direct link uses all links of its route at once, as routed packets do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from gradwire.errors import ConfigError
from gradwire.plan.job import ReductionJob
from gradwire.plan.matrix import Matrix
from gradwire.plan.trees import children_of, sources_of
from gradwire.types import Plan, Tree

Pair = tuple[int, int]


@dataclass(slots=True)
class World:
    """Lanes: resources used, one-way delay. Legs: lane, bytes per chunk, chunks, legs that wait for it, how many legs
    it waits for."""

    capacity: list[float] = field(default_factory=list)
    lane_of: dict[Pair, int] = field(default_factory=dict)
    crossed: list[tuple[int, ...]] = field(default_factory=list)
    delay: list[float] = field(default_factory=list)
    lane: list[int] = field(default_factory=list)
    nbytes: list[float] = field(default_factory=list)
    pieces: list[int] = field(default_factory=list)
    summing: list[float] = field(default_factory=list)
    waiters: list[tuple[int, ...]] = field(default_factory=list)
    needs: list[int] = field(default_factory=list)
    sideways: dict[int, tuple[tuple[int, ...], ...]] = field(default_factory=dict)


def build(matrix: Matrix, plan: Plan, job: ReductionJob, side_routes: bool = False) -> World:
    """The World of a plan; ConfigError if the plan uses a pair without a link and without a route."""
    builder = _Builder(matrix, plan, job)
    for tree in plan.trees:
        builder.add_tree(tree)
    if side_routes:
        builder.add_side_routes()
    return builder.world


class _Builder:
    def __init__(self, matrix: Matrix, plan: Plan, job: ReductionJob) -> None:
        self.world = World()
        self._matrix, self._plan, self._job = matrix, plan, job
        self._index = {member: index for index, member in enumerate(matrix.members)}
        self._resources: dict[tuple[str, int, int], int] = {}

    def add_tree(self, tree: Tree) -> None:
        world, job = self.world, self._job
        pieces = job.chunks(tree.share)
        total = tree.share * job.nbytes / pieces
        children, onward = children_of(tree.parents), children_of(sources_of(tree))
        sizes = _sizes(tree.root, children) if job.growth else dict.fromkeys(children, 1)
        others = [member for member in tree.parents if member != tree.root]
        up = {member: len(world.lane) + index for index, member in enumerate(others)}
        down = {member: leg + len(others) for member, leg in up.items()}
        results = tuple(down[child] for child in onward[tree.root])
        for member in others:
            parent = tree.parents[member]
            waiters = results if parent == tree.root else (up[parent],)
            self._leg((member, parent), total * job.wire(sizes[member]), pieces, waiters, len(children[member]), True)
        whole = total * job.wire(len(tree.parents))
        for member in others:
            source = sources_of(tree)[member]
            waiters = tuple(down[child] for child in onward[member])
            needs = len(children[tree.root]) if source == tree.root else 1
            self._leg((source, member), whole, pieces, waiters, needs, False)

    def _leg(self, pair: Pair, nbytes: float, pieces: int, waiters: tuple[int, ...], needs: int, summed: bool) -> None:
        world = self.world
        world.lane.append(self._lane(pair))
        world.nbytes.append(nbytes)
        world.pieces.append(pieces)
        world.summing.append(nbytes / self._job.aggregation if summed else 0.0)
        world.waiters.append(waiters)
        world.needs.append(needs)

    def _lane(self, pair: Pair) -> int:
        world, matrix = self.world, self._matrix
        if pair not in world.lane_of:
            world.lane_of[pair] = len(world.crossed)
            path = [self._index[member] for member in self._plan.routes.get(pair, pair)]
            crossed, delay = [], 0.0
            for source, destination in pairwise(path):
                if not matrix.rate[source, destination] > 0:
                    raise ConfigError(
                        f"plan: no link and no route from member {pair[0]} to member {pair[1]}; plan with relays"
                    )
                crossed.append(self._resource("link", source, destination, matrix.rate[source, destination]))
                crossed.append(self._resource("up", source, 0, matrix.up[source]))
                crossed.append(self._resource("down", destination, 0, matrix.down[destination]))
                delay += matrix.rtprop[source, destination] / 2
            world.crossed.append(tuple(resource for resource in crossed if resource >= 0))
            world.delay.append(float(delay))
        return world.lane_of[pair]

    def _resource(self, kind: str, first: int, second: int, capacity: float) -> int:
        if np.isinf(capacity):
            return -1
        key = (kind, first, second)
        if key not in self._resources:
            self._resources[key] = len(self.world.capacity)
            self.world.capacity.append(float(capacity))
        return self._resources[key]

    def add_side_routes(self) -> None:
        """For each lane, the lanes of each side route of its pair."""
        for pair, routes in self._plan.auxiliary.items():
            lanes = tuple(tuple(self._lane(hop) for hop in pairwise(route)) for route in routes)
            self.world.sideways[self._lane(pair)] = lanes


def _sizes(root: int, children: Mapping[int, list[int]]) -> dict[int, int]:
    order = [root]
    sizes: dict[int, int] = {}
    for member in order:
        order += children[member]
    for member in reversed(order):
        sizes[member] = 1 + sum(sizes[child] for child in children[member])
    return sizes
