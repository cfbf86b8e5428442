"""Tree setup: opens and closes one rank's connection to a plan: its wire and its executor.

In: configuration and the process group whose ranks are the plan's members. Rank 0 makes the first plan from the
configured network and publishes it in torch's store, so that all ranks have the same plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch.distributed as dist

from gradwire.clock import Clock
from gradwire.closing import Closing
from gradwire.config import Config, PlanningConfig
from gradwire.decide.initial_level import initial_level
from gradwire.decide.registry import is_controller
from gradwire.errors import ConfigError, LinkError
from gradwire.events import Faulted, Sink
from gradwire.events import Planned as PlannedEvent
from gradwire.level import Level
from gradwire.plan.job import ReductionJob
from gradwire.plan.matrix import Matrix
from gradwire.plan.membership.control_messages import pack, unpack
from gradwire.plan.membership.link_estimates import KnownNetwork
from gradwire.plan.membership.member import Member
from gradwire.plan.membership.messages import Announce
from gradwire.plan.membership.replan import ReplanConfig
from gradwire.plan.model.matrix_io import from_json
from gradwire.plan.planners.registry import make_plan
from gradwire.transport.bootstrap.store_exchange import StoreExchange
from gradwire.transport.carrier import fallback_reporter, open_wire
from gradwire.transport.traffic import Source
from gradwire.transport.wires.native import NativeWire
from gradwire.tree.accumulator import frame_bytes
from gradwire.tree.build import TreeParts, build_executor
from gradwire.tree.executor import TreeExecutor
from gradwire.tree.executor_config import ExecutorConfig
from gradwire.tree.membership_listener import MembershipListener
from gradwire.tree.partition import chunk_for
from gradwire.tree.plan_manager import PlanManagerConfig
from gradwire.types import Plan


class TreeConnection:
    """One member's connection to a plan: a wire of its own and the executor on it."""

    def __init__(self, wire: NativeWire, executor: TreeExecutor, ranks: Sequence[int]) -> None:
        self.wire, self.executor = wire, executor
        self.source = Source(wire.ledger, wire.stats, ranks)

    def request_level(self, level: str, why: str) -> None:
        """Request that the plan use this level, as soon as all members can; where plans decide it."""
        if self.executor.manager is not None:
            self.executor.manager.request_level(level, why)

    def close(self) -> None:
        manager = self.executor.manager
        parts = (self.executor.close, manager.close if manager is not None else None, self.wire.close)
        Closing(*(part for part in parts if part is not None)).close()


@dataclass(frozen=True, slots=True)
class EventContext:
    """Where events about plans and members go, and the clock of their times."""

    clock: Clock
    sink: Sink


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeContext:
    """Configuration, number of elements of the gradient, and where events go.

    `network` is what was measured of it before; without it the configured one counts. `sites`: member -> name of its
    site, for planners that use sites.
    """

    config: Config
    numel: int
    events: EventContext
    network: Matrix | None = None
    sites: Mapping[int, str] = field(default_factory=dict)

    def known_network(self, size: int) -> Matrix:
        return self.network if self.network is not None else known_network(self.config.planning, size)

    @property
    def job(self) -> ReductionJob:
        """Uncompressed where a controller chooses the level, because it may choose `off`."""
        nbytes, level = max(4 * self.numel, 1), self.config.level
        ratio = 1.0 if is_controller(level) else frame_bytes(Level.parse(level), self.numel) / nbytes
        return ReductionJob(nbytes, chunk_for(nbytes, ratio), ratio, sites=self.sites)

    def plan(self, matrix: Matrix, version: int) -> Plan:
        return make_plan(matrix, self.job, self.config.plan, version, self.config.planning.relay)


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeMembership:
    """One rank's place in a plan: its member number, the first members and plan, and the rank of each place.

    A place without a member at the start is empty: a process may join there later.

    A member that is not among `members` replaces a lost process and asks to join; with `votes` it counts for a quorum,
    because the lost process is known to be dead. `addresses` are those of members whose process was replaced; its owner
    may add to it at any time.
    """

    number: int
    members: Sequence[int]
    plan: Plan
    ranks: Sequence[int]
    addresses: Mapping[int, tuple[str, int]] = field(default_factory=dict)
    votes: bool = False


def open_tree(
    context: TreeContext,
    group: dist.ProcessGroup,
    ranks: Sequence[int],
    addresses: Mapping[int, tuple[str, int]] | None = None,
) -> TreeConnection:
    """Connect this rank as a member of the plan over `group`, whose members are the first of these ranks of the job;
    the others may join later."""
    config, events, size = context.config, context.events, group.size()
    matrix = context.known_network(len(ranks)).only(range(size))
    level = str(initial_level(None, lambda _: 0, config.cap).level) if decided_by_plan(config) else ""
    exchange = StoreExchange.for_group(group, "plan", config.transport.timeout)
    plan = first_plan(exchange, lambda: replace(context.plan(matrix, 1), level=level))
    wire = open_wire(config.transport, group, fallback_reporter(group, events.clock, events.sink))
    moved = addresses if addresses is not None else {}  # an empty mapping is kept: its owner fills it later
    place = TreeMembership(number=group.rank(), members=range(size), plan=plan, ranks=ranks, addresses=moved)
    return connect_tree(context, wire, place)


def decided_by_plan(config: Config) -> bool:
    """Whether plans decide the level: where a controller chooses it and the plan is elastic."""
    return bool(config.plan) and config.planning.elastic and is_controller(config.level)


class _MembershipEvents(MembershipListener):
    """Emits events about plans and members; a loss is emitted once, until the member rejoins."""

    def __init__(self, events: EventContext, member: Member, ranks: Sequence[int]) -> None:
        self._events, self._member, self._ranks = events, member, ranks
        self._lost: set[int] = set()

    def plan_changed(self, plan: Plan, why: str) -> None:
        at, step = self._events.clock.now(), self._member.step
        self._events.sink.emit(PlannedEvent.of(at, step, replace(plan, reason=why), self._ranks))

    def lost(self, peer: int, why: str) -> None:
        if peer in self._lost:
            return  # lost again while other members still include it
        self._lost.add(peer)
        self._fault("peer_lost", f"the others continue: {why}", peer)

    def rejoined(self, member: int, how: str) -> None:
        self._lost.clear() if member == self._member.rank else self._lost.discard(member)
        self._fault("peer_back", how, member)

    def _fault(self, kind: str, what: str, peer: int) -> None:
        at, step = self._events.clock.now(), self._member.step
        self._events.sink.emit(Faulted(at, step, kind, what, self._ranks[peer]))


def connect_tree(context: TreeContext, wire: NativeWire, place: TreeMembership) -> TreeConnection:
    """Build and start the executor of one member over a wire."""
    config, events = context.config, context.events
    network = KnownNetwork(context.known_network(len(place.ranks)), config.planning.aware)
    replan = lambda members, version: context.plan(network.matrix(members, events.clock.now()), version)  # noqa: E731
    member = Member(place.number, place.members, place.plan, replan, votes=place.votes)
    listener = _MembershipEvents(events, member, place.ranks)
    parts = TreeParts(
        wire=wire, member=member, config=executor_config(config), clock=events.clock, listener=listener,
        addresses=place.addresses, planning=(network, plan_manager_config(context)),
        empty=set(range(len(place.ranks))) - {*place.members, place.number},
    )  # fmt: skip
    executor = build_executor(parts)
    if not member.membership.fresh and member.coordinator == member.rank:
        listener.plan_changed(place.plan, place.plan.reason)
    executor.start()
    return TreeConnection(wire, executor, place.ranks)


def plan_manager_config(context: TreeContext) -> PlanManagerConfig:
    planning = context.config.planning
    replan = ReplanConfig(context.config.plan, planning.gain, planning.interval, planning.relay)
    return PlanManagerConfig(job=context.job, replan=replan, probe=planning.probe)


def executor_config(config: Config) -> ExecutorConfig:
    transport, planning = config.transport, config.planning
    stochastic = config.compress.rounding == "stochastic"
    return ExecutorConfig(
        transport.timeout, transport.tolerance, stochastic, planning.side, planning.elastic, planning.rejoin
    )


def known_network(config: PlanningConfig, world_size: int) -> Matrix:
    """The configured network (`planning.net`); without one all pairs are assumed equal until they are measured."""
    if not config.net:
        return Matrix.of([[1e7] * world_size] * world_size, 0.02, confidence=0.0)
    matrix = from_json(Path(config.net)).matrix
    if matrix.size != world_size:
        raise ConfigError(
            f"planning.net: {config.net} has {matrix.size} sites for {world_size} ranks; it needs one site per rank, "
            "also for those that planning.max_ranks allows to join"
        )
    return matrix


def first_plan(exchange: StoreExchange, make: Callable[[], Plan]) -> Plan:
    """Rank 0's plan on every rank, or its error."""
    if exchange.rank == 0:
        try:
            plan = make()
        except (ConfigError, LinkError) as error:
            exchange.publish("plan", {"error": str(error), "plan": ""})
            raise
        exchange.publish("plan", {"error": "", "plan": written_plan(plan)})
    answer = exchange.read("plan", 0, dict[str, str])
    if answer["error"]:
        raise LinkError(f"rank 0 could not make a plan: {answer['error']}")
    return read_plan(answer["plan"])


def read_plan(text: str) -> Plan:
    announced = unpack(bytes.fromhex(text))
    assert isinstance(announced, Announce)
    return announced.plan


def written_plan(plan: Plan) -> str:
    return pack(Announce(0, plan.version, 0, 0, plan)).hex()
