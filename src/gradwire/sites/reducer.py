"""Planned: everything a session needs to send its buckets through a plan's trees, opened and closed as one.

In: configuration and the model's process group. Out: `submit`, and what a bucket costs. Where sites have several ranks,
only their leaders have a crossing; with an elastic plan the others know what they need to take its place, and the
store knows what a process needs that is started in the place of a dead one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import torch
import torch.distributed as dist

from gradwire.clock import Clock
from gradwire.closing import Closing
from gradwire.config import Config
from gradwire.decide.registry import is_controller
from gradwire.errors import ConfigError, LinkError
from gradwire.events import Faulted, Sink
from gradwire.level import Level
from gradwire.plan.trees import children_of, sources_of
from gradwire.sites.failover import AddressBook, Ask, FailoverStore, LeaderRecord, SiteFailover, nobody_knows
from gradwire.sites.job_record import VARIABLE, JobRecord, facts_of, find, keep, seat
from gradwire.sites.local_reduce import LocalReducer, SiteLevel
from gradwire.sites.placeholder_group import PlaceholderGroup
from gradwire.sites.step_resume import StepResume
from gradwire.sites.topology import SiteTopology, ask_sites, open_groups
from gradwire.transport.bootstrap.address import own_address
from gradwire.transport.bootstrap.rendezvous import listen
from gradwire.transport.bootstrap.secret import given_secret
from gradwire.transport.bootstrap.store_exchange import StoreExchange
from gradwire.transport.carrier import ltp_opener, tcp_opener
from gradwire.transport.traffic import Source
from gradwire.transport.wires.ltp import Endpoint
from gradwire.tree.accumulator import check_summable, frame_bytes
from gradwire.tree.request import BucketRequest
from gradwire.tree.setup import (
    EventContext,
    TreeConnection,
    connect_tree,
    decided_by_plan,
    known_network,
    open_tree,
    planner_of,
    read_plan,
    written_plan,
)  # fmt: skip
from gradwire.tree.state_transfer import TransferableState
from gradwire.types import Bucket, Decision, Footprint, Plan, Tree


@dataclass(frozen=True, slots=True)
class PlanShape:
    """What a plan's trees come to: frames a member sends for a piece, on average; hops of the longest way up and down;
    energy of what `member` encodes against its own gradient's."""

    frames: float = 2.0
    hops: int = 2
    burden: float = 1.0

    @classmethod
    def of(cls, plan: Plan, member: int) -> PlanShape:
        frames = sum(tree.share * _edges(plan, tree) for tree in plan.trees)
        burden = sum(tree.share * _below(tree, member) ** 2 for tree in plan.trees)
        return cls(frames / len(plan.trees[0].parents), 2 * max(_depth(tree) for tree in plan.trees), burden)


class TreeReducer:
    """Sends buckets through the trees, by way of the site's leader where sites have several ranks."""

    def __init__(self, crossing: TreeConnection | None, site: LocalReducer | SiteFailover | None) -> None:
        self.crossing, self.site = crossing, site
        self._whereabouts: AddressBook | None = None
        self._estate: TransferableState | None = None
        # Where plans decide the level: what the leader of this rank's site told of it.
        self._shared: SiteLevel | None = None
        self._known: tuple[Plan | None, PlanShape] = None, PlanShape()

    def source(self) -> Source | None:
        """What tells of the traffic between sites; None on a rank that sends nothing across."""
        return self.crossing.source if self.crossing else None

    @property
    def plan(self) -> Plan | None:
        """The plan in force; None on a rank that sends nothing across."""
        return self.crossing.executor.member.plan if self.crossing else None

    def version(self) -> int:
        """Of the plan in force; 0 on a rank that sends nothing across."""
        plan = self.plan
        return plan.version if plan is not None else 0

    @property
    def level(self) -> Level | None:
        """The level of the plan in force, as the leader told it to its site; None where plans do not decide it."""
        plan = self.plan
        if plan is None:
            return self._shared.told if self._shared is not None else None
        return Level.parse(plan.level) if plan is not None and plan.level else None

    @property
    def used(self) -> Level | None:
        """The level of the last step: an epoch that began meanwhile may have had another than the plan before it."""
        return self.crossing.executor.used_level if self.crossing else None

    @property
    def coordinates(self) -> bool:
        """Whether this rank proposes changes of the plan."""
        member = self.crossing.executor.member if self.crossing else None
        return member is not None and member.coordinator == member.rank

    def wish(self, decision: Decision) -> None:
        """Let the plan have this level, as soon as all members can."""
        if self.crossing is not None:
            self.crossing.request_level(str(decision.level), decision.reason)

    @property
    def burden(self) -> float:
        """Energy of what this rank encodes against its own gradient's: a member re-encodes the sum of everybody below
        it, so what waits in its residual is as much larger."""
        return self._shape().burden

    @property
    def sideways(self) -> int:
        """Frames that this rank sent by side routes."""
        sides = self.crossing.executor.side_routes if self.crossing else None
        return sides.taken if sides else 0

    def hand_over(self, estate: TransferableState) -> None:
        """What a member that comes back is handed; a leader hands it on to its site."""
        self._estate = estate
        if self.site is not None:
            estate = self.site.hand_over(estate)
        if self.crossing is not None:
            self.crossing.executor.hand_over(estate)

    def submit(self, parcel: BucketRequest) -> None:
        if self.site is not None:
            self.site.submit(parcel)
        elif self.crossing is not None:
            self.crossing.executor.submit(parcel)

    def resend(self) -> None:
        """More waits than the last step left (it was undone, or a state was loaded), also on ranks that do not lead."""
        if self.site is not None:
            self.site.resend()

    # ---- sites that outlive their leader -------------------------------------------------------------------------
    def heirloom(self) -> LeaderRecord | None:
        """What this rank's neighbours must know to speak for the site; None on those who do not lead."""
        if self.crossing is None:
            return None
        wire, plan = self.crossing.wire, self.crossing.executor.member.plan
        kind = "ltp" if isinstance(wire, Endpoint) else "tcp"
        drawn = "" if given_secret() is not None else wire.secret.hex()
        return LeaderRecord(kind=kind, secret=drawn, places=dict(wire.addresses), plan=written_plan(plan))

    def follow(self, whereabouts: AddressBook) -> None:
        """Hear of those who speak for other sites by now, from elsewhere."""
        assert self.crossing is not None
        executor = self.crossing.executor
        self._whereabouts, executor.reconnector.addresses = whereabouts, whereabouts.places
        whereabouts.watch(lambda: executor.frame_io.disconnected | executor.frame_io.left)

    def share_level(self, site: LocalReducer) -> None:
        """Let every rank of the site know the level of the plan in force."""
        self._shared = site.level = SiteLevel(lambda: self.plan.level if self.plan is not None else "")

    def inherit(self, site: LocalReducer, crossing: TreeConnection | None) -> LocalReducer:
        """The site as it was founded anew, and on its leader the way to the other sites."""
        assert self._estate is not None
        estate, site.level = site.hand_over(self._estate), self._shared
        if crossing is not None:
            self.crossing = crossing
            crossing.executor.hand_over(estate)
        return site

    def footprint(self, level: Level, bucket: Bucket) -> Footprint:
        """What a member sends for a bucket, on average, and the hops of the longest way up and down."""
        if self.crossing is None:
            return Footprint(2 * bucket.nbytes, 2)
        shape = self._shape()
        return Footprint(round(frame_bytes(level, bucket.numel) * shape.frames), shape.hops)

    def _shape(self) -> PlanShape:
        """Worked out once per plan: a controller asks for every level at every step."""
        plan = self.plan
        if plan is not None and self.crossing is not None and plan is not self._known[0]:
            self._known = plan, PlanShape.of(plan, self.crossing.executor.member.rank)
        return self._known[1]

    def close(self) -> None:
        parts = (self.site, self._whereabouts, self.crossing)
        Closing(*(part.close for part in parts if part is not None)).close()


def open_reducer(
    config: Config,
    group: dist.ProcessGroup,
    numel: int,
    clock: Clock,
    sink: Sink,
    ask: Ask = nobody_knows,
) -> TreeReducer | None:
    """None without a plan or without peers. Every member of the group calls this at the same point."""
    told = EventContext(clock, sink)
    if isinstance(group, PlaceholderGroup):
        return _come_back(SiteContext(config, group, SiteTopology.single(group.size()), numel, told))
    if not config.plan or group.size() == 1:
        return None
    if not is_controller(config.level):
        check_summable(Level.parse(config.level))
    sites = ask_sites(StoreExchange.for_group(group, "sites", config.transport.timeout), config.planning.sites)
    if sites is None:
        planned = TreeReducer(open_tree(config, group, range(group.size()), numel, told), None)
        if config.planning.elastic:
            _keep_places(planned, SiteContext(config, group, SiteTopology.single(group.size()), numel, told))
        return planned
    # A leader that was cut off waits to be taken back, and its neighbours wait for it.
    patience = config.transport.timeout + (config.planning.rejoin if config.planning.elastic else 0.0)
    own, leaders = open_groups(sites, group, patience)
    crossing = None
    if leaders is not None and leaders.size() > 1:
        crossing = open_tree(config, leaders, sites.leaders, numel, told)
    across = crossing.executor.submit if crossing else _alone if leaders is not None else None
    outlives = config.planning.elastic and len(sites.groups) > 1
    site = LocalReducer(own, across, keep=outlives)
    if not outlives:
        return TreeReducer(crossing, site)
    return _with_heirs(TreeReducer(crossing, site), site, SiteContext(config, group, sites, numel, told, ask), own[1])


@dataclass(frozen=True, slots=True)
class SiteContext:
    """The job as a rank of some site sees it."""

    config: Config
    group: dist.ProcessGroup
    sites: SiteTopology
    numel: int
    told: EventContext
    ask: Ask = nobody_knows

    @property
    def rank(self) -> int:
        return self.group.rank()

    @property
    def own(self) -> tuple[int, ...]:
        return self.sites.of(self.rank)

    @property
    def member(self) -> int:
        """What this rank's site is called in the plan between sites."""
        return self.sites.groups.index(self.own)


def _with_heirs(
    planned: TreeReducer, site: LocalReducer, family: SiteContext, neighbours: dist.ProcessGroup
) -> TreeReducer:
    """Let the site outlive any of its ranks: all learn now what they would need to know to lead it."""
    config, store = family.config, dist.distributed_c10d._get_default_store()
    whereabouts = AddressBook(store, family.group.group_name)
    if decided_by_plan(config):
        planned.share_level(site)
    heirloom = share_leader_record(planned.heirloom(), neighbours)
    if planned.crossing is not None:
        planned.follow(whereabouts)
    name = f"{family.group.group_name}/{family.member}"
    register = FailoverStore(store, name, config.transport.dead_after, config.transport.timeout, family.ask)
    left = list(family.own)

    def found(generation: int) -> LocalReducer:
        before, left[:] = list(left), register.survivors(left, family.rank, generation)
        groups = register.groups(left, family.rank, generation)
        if left[0] == before[0]:
            return resumed(generation, groups, sorted(set(before) - set(left)))
        if left[0] != family.rank:
            return planned.inherit(LocalReducer(groups, None, keep=True), None)
        crossing = _take_over(family, heirloom, read_plan(heirloom.plan), whereabouts)
        crossing.executor.member.votes = True  # the dead leader's site is here
        heir = planned.inherit(LocalReducer(groups, crossing.executor.submit, keep=True), crossing)
        planned.follow(whereabouts)
        return heir

    def resumed(generation: int, groups: Sequence[dist.ProcessGroup], dead: Sequence[int]) -> LocalReducer:
        """The leader lives and goes on with those who are left."""
        assert isinstance(planned.site, SiteFailover)
        place, old = left.index(family.rank), planned.site.site
        at = register.positions(left, family.rank, generation, planned.site.position())
        if not place:
            for rank in dead:
                why = f"rank {left[0]} goes on with ranks {left} of its site"
                family.told.sink.emit(Faulted(family.told.clock.now(), at[0].step, "peer_lost", why, rank))
        return old.resumed(groups, StepResume.of(place, at, old.attempts))

    planned.site = SiteFailover(site, found, config.transport.timeout + config.planning.rejoin)
    return planned


def _keep_places(planned: TreeReducer, family: SiteContext) -> None:
    """Let a rank that dies be replaced: a process started anew finds here what it would need to know."""
    assert planned.crossing is not None
    store, name = dist.distributed_c10d._get_default_store(), seat(family.group.group_name)
    whereabouts = AddressBook(store, name)
    if family.rank == 0:
        heirloom = planned.heirloom()
        assert heirloom is not None
        whereabouts.tell(0, (own_address(), planned.crossing.wire.port))
        keep(store, name, JobRecord(heirloom, facts_of(family.config)))
    planned.follow(whereabouts)


def _come_back(family: SiteContext) -> TreeReducer:
    """This process instead of one that died: the others take it back as one that was cut off."""
    config, group = family.config, family.group
    if not config.plan or not config.planning.elastic:
        raise ConfigError(f"{VARIABLE}: only a job with a plan and planning.elastic takes a rank in; this one is not")
    if config.compress.warmup:
        raise ConfigError(f"{VARIABLE}: compress.warmup counts steps that this rank has not made; set it to 0")
    store, name = dist.distributed_c10d._get_default_store(), seat(group.group_name)
    heirloom = find(store, name, facts_of(config), config.transport.connect).heirloom
    whereabouts = AddressBook(store, name)
    whereabouts.look(range(group.size()))
    places = heirloom.places | whereabouts.places
    missing = set(range(group.size())) - places.keys() - {family.rank}
    if missing:
        raise LinkError(f"{VARIABLE}: the store does not say where ranks {sorted(missing)} are")
    places.pop(family.rank, None)
    # Whatever plan it begins with, it is told the one in force when it is taken in.
    plan = planner_of(config, family.numel)(known_network(config.planning, group.size()), 1)
    crossing = _take_over(family, msgspec.structs.replace(heirloom, places=places), plan, whereabouts)
    planned = TreeReducer(crossing, None)
    planned.follow(whereabouts)
    return planned


def _take_over(family: SiteContext, heirloom: LeaderRecord, plan: Plan, whereabouts: AddressBook) -> TreeConnection:
    """This rank instead of a dead one, as a member that the others have lost and take back."""
    config, member = family.config, family.member
    secret = given_secret() or bytes.fromhex(heirloom.secret)
    if not secret:
        raise LinkError(f"GRADWIRE_SECRET: rank {family.rank} cannot take a place without it; set it on every rank")
    opener = (ltp_opener if heirloom.kind == "ltp" else tcp_opener)(config.transport, member, secret)
    wire, place = listen(opener, None)
    if wire is None:
        raise LinkError(f"rank {family.rank} cannot listen: {place.error}")
    ranks = [family.rank if one == member else leader for one, leader in enumerate(family.sites.leaders)]
    others = [one for one in range(len(ranks)) if one != member]
    try:
        wire.places.update(heirloom.places)
        whereabouts.tell(member, (place.address, place.port))
        return connect_tree(config, wire, member, (others, plan), ranks, family.numel, family.told)
    except BaseException:
        wire.close()
        raise


def share_leader_record(own: LeaderRecord | None, neighbours: dist.ProcessGroup) -> LeaderRecord:
    """What the leader knows, on every rank of its site."""
    data = torch.frombuffer(bytearray(msgspec.json.encode(own)), dtype=torch.uint8)
    size = torch.tensor([data.numel()])
    neighbours.broadcast(size, 0).wait()
    data = data if own is not None else torch.empty(int(size), dtype=torch.uint8)
    neighbours.broadcast(data, 0).wait()
    return msgspec.json.decode(bytes(data.numpy()), type=LeaderRecord)


def _alone(parcel: BucketRequest) -> None:
    """The only site: its sum is everybody's."""
    parcel.gradient.div_(parcel.weight)
    parcel.done(None)


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
