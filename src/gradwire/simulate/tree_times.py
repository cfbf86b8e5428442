"""Tree times: how long a sum along a plan's trees takes on a network, over kernel TCP or LTP, in virtual time.

In: the lab's Network, a Plan, bytes of a bucket's frames. Out: when an exchange that starts at a time has ended on all
ranks. Pieces pass the trees' edges side by side and share the network's links fairly (simulate/engine.py): ranks behind
one line share it. What TCP's windows cost is added: the longest delay of a connection that opens or loses, on the way
up and on the way down, by the same model as that of flat exchanges (simulate/transfer.py). Every member handles its
frames on one processor, which their bytes share like a link (`handled`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from gradwire.level import Level
from gradwire.network import Network
from gradwire.plan.job import ReductionJob
from gradwire.plan.matrix import Matrix
from gradwire.simulate.engine import FlowSimulator
from gradwire.simulate.link_times import crossing_flows
from gradwire.simulate.lockstep import Movement
from gradwire.simulate.transfer import LTP_SHARE, Flow, NetworkTimes, Pair
from gradwire.simulate.underlay import UNLIMITED
from gradwire.simulate.workers import BucketTraffic
from gradwire.simulate.world import World, build
from gradwire.sites.plan_shape import PlanShape
from gradwire.tree.accumulator import frame_bytes, mask_bytes
from gradwire.tree.frame_cost import FRAME, frame_seconds
from gradwire.tree.partition import LEAST_WIRE, Partitioner
from gradwire.types import Bucket, Footprint, Plan, TransportKind

# Pieces of an exchange. The executor cuts a whole gradient into up to four times as many; so many overlap as well.
PIECES: Final = 32


class TreeTimes(NetworkTimes):
    """Times of exchanges along one plan; keeps the state of every connection."""

    def __init__(self, network: Network, plan: Plan, wire: TransportKind = "tcp", *, seed: int = 1) -> None:
        super().__init__(network, wire, seed=seed)
        self.plan = plan
        # Edges carry unequal parts, so no two connections are always in the same state.
        for pair in self._pairs:
            flow = self.flows[pair] = Flow(self._path(pair), self._path((pair[1], pair[0])))
            self._update_path(flow, 0.0)
        self._shape = PlanShape.of(plan, 0)
        # Bytes over each edge, until someone takes them.
        self.sent: Counter[Pair] = Counter()
        # Seconds of a member's processor for each byte of frames that it sends or receives.
        self.handling = 0.0
        self._known: dict[tuple[int, tuple[float, ...]], float] = {}
        self._worlds: dict[int, World] = {}
        self._everybody = Matrix.of(np.ones((self.world_size, self.world_size)))

    def operate(self, kind: str, start: float, nbytes: int) -> float:
        """A sum along the trees; `nbytes` are those of a bucket's frames over one edge."""
        if nbytes <= 0:
            return start
        begin = max(start, self._free)
        if self._changing:
            for flow in self.flows.values():
                self._update_path(flow, begin)
        capacity = tuple(link.payload_rate(begin, 1) * self._kept for link in self._links)
        capacity += (1.0 / self.handling if self.handling else UNLIMITED,) * self.world_size
        took, latency = self._seconds(nbytes, capacity), self._seconds(1, capacity)
        took += self._windows(begin, nbytes)
        self._free = begin + max(0.0, took - latency)
        return begin + took

    def handled(self, level: Level, numel: int) -> None:
        """What processors do with the frames of the coming exchanges of so many elements at this level."""
        frames = frame_bytes(level, numel)
        pieces = Partitioner(self.plan).partition(numel, frames / (4 * numel))
        self.handling = sum(frame_seconds(level, piece.numel) for piece in pieces) / frames

    def sent_by_rank(self, kind: str, nbytes: int) -> int:
        return round(nbytes * self._shape.frames)

    def footprint(self, level: Level, buckets: Sequence[Bucket]) -> tuple[Footprint, ...]:
        """What a level sends, as a reducer of trees says it."""
        found = []
        for bucket in buckets:
            mask = mask_bytes(level, bucket.numel)
            sent = (frame_bytes(level, bucket.numel) + mask / 2) * self._shape.frames
            found.append(Footprint(round(sent), self._shape.hops * (2 if mask else 1)))
        return tuple(found)

    @property
    def _kept(self) -> float:
        """What the wire leaves of a link."""
        return LTP_SHARE if self._wire == "ltp" else 1.0

    def _seconds(self, nbytes: int, capacity: tuple[float, ...]) -> float:
        """Of pieces that share links of this capacity."""
        key = nbytes, capacity
        if key not in self._known:
            world = self._world(nbytes)
            world.capacity = [max(1.0, rate) for rate in capacity]
            self._known[key] = FlowSimulator(world).run().seconds
        return self._known[key]

    def _world(self, nbytes: int) -> World:
        """The plan's legs over the network's links, where a pair's packets share what others use."""
        if nbytes in self._worlds:
            return self._worlds[nbytes]
        job = ReductionJob(nbytes, max(LEAST_WIRE, nbytes // PIECES))
        world = self._worlds[nbytes] = build(self._everybody, self.plan, job)
        for pair, lane in world.lane_of.items():
            path = self._path(pair)
            members = self.plan.routes.get(pair, pair)
            world.crossed[lane] = path + tuple(len(self._links) + member for member in members)
            # Every hop handles a frame at both ends before it goes on.
            hops = sum(float(self._links[index].spec_at(0.0).delay) for index in path)
            world.delay[lane] = hops + 2 * FRAME * (len(members) - 1)
        return world

    def _path(self, pair: Pair) -> tuple[int, ...]:
        """The network's links of a tree's edge, also of one that members relay."""
        hops = pairwise(self.plan.routes.get(pair, pair))
        return tuple(index for hop in hops for index in self._paths[hop])

    def _windows(self, begin: float, nbytes: int) -> float:
        """Seconds that connections take more than their bytes do, because windows open or packets are lost."""
        world = self._world(nbytes)
        pairs = {lane: pair for pair, lane in world.lane_of.items()}
        up: dict[Pair, float] = {}
        down: dict[Pair, float] = {}
        for leg, lane in enumerate(world.lane):
            way, pair = up if world.summing[leg] else down, pairs[lane]
            way[pair] = way.get(pair, 0.0) + world.nbytes[leg] * world.pieces[leg]
        for way in (up, down):
            self.sent.update({pair: round(sent) for pair, sent in way.items()})
        return self._longest(up, begin) + self._longest(down, begin)

    def probe(self, pair: Pair, now: float, nbytes: int) -> float:
        """Bytes per second of a message over a link that carries nothing else of this job; it is not relayed."""
        path, flow = self._paths[pair], self.flows[pair]
        if flow.path != path:
            flow = Flow(path, self._paths[pair[1], pair[0]])
            self._update_path(flow, now)
        return nbytes / (self._send(flow, now, nbytes, crossing_flows([path])) - now)

    def follow(self, plan: Plan, now: float) -> None:
        """Sum along another plan from here on; connections keep their state."""
        self.plan, self._shape = plan, PlanShape.of(plan, 0)
        self._known, self._worlds = {}, {}
        for pair, flow in self.flows.items():
            flow.path, flow.back = self._path(pair), self._path((pair[1], pair[0]))
            self._update_path(flow, now)

    def _longest(self, sent: dict[Pair, float], begin: float) -> float:
        crossing, most = crossing_flows(self._path(pair) for pair in sent), 0.0
        for pair, nbytes in sent.items():
            flow = self.flows[pair]
            share = self._share(flow, crossing, begin)
            if share > 0:
                most = max(most, self._send(flow, begin, round(nbytes), crossing) - begin - nbytes / share)
        return most


def tree_traffic(traffic: tuple[BucketTraffic, ...], level: Level) -> tuple[BucketTraffic, ...]:
    """What the buckets of a step move along trees: indices first, where members agree on them, then values."""
    found = []
    for one in traffic:
        numel = one.bucket.numel
        moved = (Movement("mask", mask_bytes(level, numel)), Movement("tree", frame_bytes(level, numel)))
        found.append(BucketTraffic(one.bucket, (moved,)))
    return tuple(found)
