"""Planned: everything a session needs to send its buckets through a plan's trees, opened and closed as one.

In: configuration and the model's process group. Out: `submit`, and what a bucket costs. The first plan is made by
rank 0 from what is known of the network and told through torch's store, so that all ranks hold the same one to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch.distributed as dist

from gradwire.aggregate.deal import chunk_for
from gradwire.aggregate.handing import Estate
from gradwire.aggregate.parcel import Parcel
from gradwire.aggregate.portion import check_summable, frame_bytes
from gradwire.aggregate.steward import Steward, StewardConfig
from gradwire.aggregate.walker import WalkConfig, Walker
from gradwire.carry import open_wire, telling
from gradwire.clock import Clock
from gradwire.config import Config, PlanningConfig
from gradwire.decide.registry import is_controller
from gradwire.errors import ConfigError, LinkError
from gradwire.events import Faulted, Sink
from gradwire.events import Planned as PlannedEvent
from gradwire.flow import Bucket, Footprint, Plan, Tree
from gradwire.level import Level
from gradwire.plan.job import Job
from gradwire.plan.matrix import Matrix
from gradwire.plan.matrix_io import from_json
from gradwire.plan.messages import Announce
from gradwire.plan.news import pack, unpack
from gradwire.plan.policy import Member
from gradwire.plan.registry import make_plan
from gradwire.plan.replan import ReplanConfig
from gradwire.plan.trees import children_of, sources_of
from gradwire.site import Site, ask_sites, open_groups
from gradwire.traffic import Source
from gradwire.transport.native import NativeWire
from gradwire.transport.notes import Notes


class Crossing:
    """A walker and its steward over a wire of their own: one member's part in a plan."""

    def __init__(self, wire: NativeWire, walker: Walker, steward: Steward, ranks: Sequence[int]) -> None:
        self._wire, self.walker, self._steward = wire, walker, steward
        self.source = Source(wire.ledger, wire.stats, ranks)

    def close(self) -> None:
        try:
            self.walker.close()
        finally:
            self._steward.close()
            self._wire.close()


@dataclass(frozen=True, slots=True)
class Shape:
    """What a plan's trees come to: frames a member sends for a piece, on average; hops of the longest way up and down;
    energy of what `member` encodes against its own gradient's."""

    frames: float = 2.0
    hops: int = 2
    burden: float = 1.0

    @classmethod
    def of(cls, plan: Plan, member: int) -> Shape:
        frames = sum(tree.share * _edges(plan, tree) for tree in plan.trees)
        burden = sum(tree.share * _below(tree, member) ** 2 for tree in plan.trees)
        return cls(frames / len(plan.trees[0].parents), 2 * max(_depth(tree) for tree in plan.trees), burden)


class Planned:
    """Sends buckets through the trees, by way of the site's leader where sites have several ranks."""

    def __init__(self, crossing: Crossing | None, site: Site | None) -> None:
        self._crossing, self._site = crossing, site
        self._known: tuple[Plan | None, Shape] = None, Shape()

    def source(self) -> Source | None:
        """What tells of the traffic between sites; None on a rank that sends nothing across."""
        return self._crossing.source if self._crossing else None

    @property
    def plan(self) -> Plan | None:
        """The plan in force; None on a rank that sends nothing across."""
        return self._crossing.walker.member.plan if self._crossing else None

    @property
    def burden(self) -> float:
        """Energy of what this rank encodes against its own gradient's: a member re-encodes the sum of everybody below
        it, so what waits in its residual is as much larger."""
        return self._shape().burden

    @property
    def sideways(self) -> int:
        """Frames that this rank sent by side routes."""
        sides = self._crossing.walker.sides if self._crossing else None
        return sides.taken if sides else 0

    def hand_over(self, estate: Estate) -> None:
        """What a member that comes back is handed; a leader hands it on to its site."""
        if self._site is not None:
            estate = self._site.hand_over(estate)
        if self._crossing is not None:
            self._crossing.walker.hand_over(estate)

    def submit(self, parcel: Parcel) -> None:
        if self._site is not None:
            self._site.submit(parcel)
        elif self._crossing is not None:
            self._crossing.walker.submit(parcel)

    def footprint(self, level: Level, bucket: Bucket) -> Footprint:
        """What a member sends for a bucket, on average, and the hops of the longest way up and down."""
        if self._crossing is None:
            return Footprint(2 * bucket.nbytes, 2)
        shape = self._shape()
        return Footprint(round(frame_bytes(level, bucket.numel) * shape.frames), shape.hops)

    def _shape(self) -> Shape:
        """Worked out once per plan: a controller asks for every level at every step."""
        plan = self.plan
        if plan is not None and self._crossing is not None and plan is not self._known[0]:
            self._known = plan, Shape.of(plan, self._crossing.walker.member.rank)
        return self._known[1]

    def close(self) -> None:
        if self._site is not None:
            self._site.close()
        if self._crossing is not None:
            self._crossing.close()


def open_planned(config: Config, group: dist.ProcessGroup, numel: int, clock: Clock, sink: Sink) -> Planned | None:
    """None without a plan or without peers. Every member of the group calls this at the same point."""
    if not config.plan or group.size() == 1:
        return None
    if not is_controller(config.level):
        check_summable(Level.parse(config.level))
    sites = ask_sites(_notes("sites", config, group), config.planning.sites)
    if sites is None:
        return Planned(_cross(config, group, range(group.size()), numel, Told(clock, sink)), None)
    # A leader that was cut off waits to be taken back, and its neighbours wait for it.
    patience = config.transport.timeout + (config.planning.rejoin if config.planning.elastic else 0.0)
    own, leaders = open_groups(sites, group, patience)
    crossing = None
    if leaders is not None and leaders.size() > 1:
        crossing = _cross(config, leaders, sites.leaders, numel, Told(clock, sink))
    across = crossing.walker.submit if crossing else _alone if leaders is not None else None
    return Planned(crossing, Site(own, across))


def _alone(parcel: Parcel) -> None:
    """The only site: its sum is everybody's."""
    parcel.gradient.div_(parcel.weight)
    parcel.done(None)


def _notes(what: str, config: Config, group: dist.ProcessGroup) -> Notes:
    store = dist.distributed_c10d._get_default_store()
    return Notes.open(store, f"{what}/{group.group_name}", group.rank(), group.size(), config.transport.timeout)


@dataclass(frozen=True, slots=True)
class Told:
    """Who hears of plans and losses, and by which clock."""

    clock: Clock
    sink: Sink


def _cross(config: Config, group: dist.ProcessGroup, ranks: Sequence[int], numel: int, told: Told) -> Crossing:
    """This rank as a member of the plan over `group`, whose members are these ranks of the job."""
    clock, sink = told.clock, told.sink
    job = Job(max(4 * numel, 1), chunk_for(4 * numel))
    known = known_network(config.planning, group.size())

    def planned(matrix: Matrix, version: int = 1) -> Plan:
        plan = make_plan(matrix, job, config.plan, version)
        return plan if config.planning.relay else replace(plan, routes={})

    plan = first_plan(_notes("plan", config, group), lambda: planned(known))
    wire = open_wire(config.transport, group, telling(group, clock, sink))
    replan = lambda members, version: planned(known.only(members), version)  # noqa: E731

    member = Member(group.rank(), range(group.size()), plan, replan)

    def changed(fresh: Plan, why: str) -> None:
        sink.emit(PlannedEvent.of(clock.now(), member.step, replace(fresh, reason=why), ranks))

    gone: set[int] = set()

    def lost(peer: int, why: str) -> None:
        if peer in gone:
            return  # it is met again while others still count it in
        gone.add(peer)
        sink.emit(Faulted(clock.now(), member.step, "peer_lost", f"the others go on: {why}", ranks[peer]))

    def back(rank: int, how: str) -> None:
        gone.clear() if rank == member.rank else gone.discard(rank)
        sink.emit(Faulted(clock.now(), member.step, "peer_back", how, ranks[rank]))

    planning, stochastic = config.planning, config.compress.rounding == "stochastic"
    walk = WalkConfig(
        config.transport.timeout, config.transport.tolerance, stochastic, planning.side, planning.elastic,
        planning.rejoin,
    )  # fmt: skip
    walker = Walker(wire, member, walk, clock)
    walker.on_loss, walker.on_return = lost, back
    settings = ReplanConfig(config.plan, config.planning.gain, config.planning.interval)
    steward = Steward(
        walker, job, known, StewardConfig(settings, config.planning.aware, config.planning.probe), changed
    )
    steward.begin(clock.now())
    if member.coordinator == member.rank:
        changed(plan, plan.reason)
    walker.start()
    return Crossing(wire, walker, steward, ranks)


def known_network(config: PlanningConfig, world_size: int) -> Matrix:
    """What the user says of the network; without it every pair is taken to be alike until measured."""
    if not config.net:
        return Matrix.of([[1e7] * world_size] * world_size, 0.02, confidence=0.0)
    matrix = from_json(Path(config.net)).matrix
    if matrix.size != world_size:
        raise ConfigError(f"planning.net: {config.net} has {matrix.size} sites, the job {world_size} ranks: one each")
    return matrix


def first_plan(notes: Notes, make: Callable[[], Plan]) -> Plan:
    """Rank 0's plan on every rank, or its error."""
    if notes.rank == 0:
        try:
            plan = make()
        except (ConfigError, LinkError) as error:
            notes.tell("plan", {"error": str(error), "plan": ""})
            raise
        notes.tell("plan", {"error": "", "plan": pack(Announce(0, plan.version, 0, 0, plan)).hex()})
    told = notes.hear("plan", 0, dict[str, str])
    if told["error"]:
        raise LinkError(f"rank 0 could not make a plan: {told['error']}")
    announced = unpack(bytes.fromhex(told["plan"]))
    assert isinstance(announced, Announce)
    return announced.plan


def _edges(plan: Plan, tree: Tree) -> int:
    """Frames that all members together send for one piece of a tree; relays count."""
    ups = [(child, parent) for child, parent in tree.parents.items() if child != parent]
    downs = [(source, heir) for heir, source in sources_of(tree).items() if heir != source]
    return sum(len(plan.routes.get(edge, edge)) - 1 for edge in ups + downs)


def _below(tree: Tree, member: int) -> int:
    """How many members' gradients a member's sum holds, its own included."""
    children, waiting, count = children_of(tree.parents), [member], 0
    while waiting:
        count += 1
        waiting += children[waiting.pop()]
    return count


def _depth(tree: Tree) -> int:
    longest = 0
    for member in tree.parents:
        hops, at = 0, member
        while at != tree.root:
            hops, at = hops + 1, tree.parents[at]
        longest = max(longest, hops)
    return longest
