"""Crossing: one rank's part in a plan, opened and closed as one: a wire, a walker and a steward.

In: configuration and the group whose ranks are the plan's members. The first plan is made by rank 0 from what is known
of the network and told through torch's store, so that all ranks hold the same one to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch.distributed as dist

from gradwire.clock import Clock
from gradwire.closing import Closing
from gradwire.config import Config, PlanningConfig
from gradwire.decide.initial_level import start
from gradwire.decide.registry import is_controller
from gradwire.errors import ConfigError, LinkError
from gradwire.events import Faulted, Sink
from gradwire.events import Planned as PlannedEvent
from gradwire.level import Level
from gradwire.plan.job import ReductionJob
from gradwire.plan.matrix import Matrix
from gradwire.plan.membership.control_messages import pack, unpack
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
from gradwire.tree.executor import ExecutorConfig, TreeExecutor
from gradwire.tree.partition import chunk_for
from gradwire.tree.plan_manager import PlanManager, PlanManagerConfig
from gradwire.types import Plan


class TreeConnection:
    """A walker and its steward over a wire of their own: one member's part in a plan."""

    def __init__(self, wire: NativeWire, executor: TreeExecutor, manager: PlanManager, ranks: Sequence[int]) -> None:
        self.wire, self.executor, self._plan_manager = wire, executor, manager
        self.source = Source(wire.ledger, wire.stats, ranks)

    def request_level(self, level: str, why: str) -> None:
        """Let the plan have this level, as soon as all members can; where plans decide it."""
        self._plan_manager.level = level, why

    def close(self) -> None:
        Closing(self.executor.close, self._plan_manager.close, self.wire.close).close()


@dataclass(frozen=True, slots=True)
class EventContext:
    """Who hears of plans and losses, and by which clock."""

    clock: Clock
    sink: Sink


def open_tree(
    config: Config,
    group: dist.ProcessGroup,
    ranks: Sequence[int],
    numel: int,
    told: EventContext,
    addresses: Mapping[int, tuple[str, int]] | None = None,
) -> TreeConnection:
    """This rank as a member of the plan over `group`, whose members are these ranks of the job. `addresses` are those of
    members whose process was replaced; its owner may add to it at any time."""
    known = known_network(config.planning, group.size())
    level = str(start(None, lambda _: 0).level) if decided_by_plan(config) else ""
    exchange = StoreExchange.for_group(group, "plan", config.transport.timeout)
    plan = first_plan(exchange, lambda: replace(planner_of(config, numel)(known, 1), level=level))
    wire = open_wire(config.transport, group, fallback_reporter(group, told.clock, told.sink))
    return connect_tree(config, wire, group.rank(), (range(group.size()), plan), ranks, numel, told, addresses)


def decided_by_plan(config: Config) -> bool:
    """Whether levels change with plans: a controller's, where ranks come and go."""
    return bool(config.plan) and config.planning.elastic and is_controller(config.level)


def planner_of(config: Config, numel: int) -> Callable[[Matrix, int], Plan]:
    job = _job(config, numel)
    return lambda matrix, version: make_plan(matrix, job, config.plan, version, config.planning.relay)


def _job(config: Config, numel: int) -> ReductionJob:
    """Every bit, where a controller may choose to send them all."""
    nbytes = max(4 * numel, 1)
    ratio = 1.0 if is_controller(config.level) else frame_bytes(Level.parse(config.level), numel) / nbytes
    return ReductionJob(nbytes, chunk_for(nbytes, ratio), ratio)


@dataclass(frozen=True, slots=True)
class _MembershipEvents:
    """What a member tells of plans and of others; a loss is told once, until the lost one is back."""

    told: EventContext
    member: Member
    ranks: Sequence[int]
    gone: set[int] = field(default_factory=set)

    def changed(self, plan: Plan, why: str) -> None:
        at, step = self.told.clock.now(), self.member.step
        self.told.sink.emit(PlannedEvent.of(at, step, replace(plan, reason=why), self.ranks))

    def lost(self, peer: int, why: str) -> None:
        if peer in self.gone:
            return  # it is met again while others still count it in
        self.gone.add(peer)
        self._fault("peer_lost", f"the others go on: {why}", peer)

    def back(self, peer: int, how: str) -> None:
        self.gone.clear() if peer == self.member.rank else self.gone.discard(peer)
        self._fault("peer_back", how, peer)

    def _fault(self, kind: str, what: str, peer: int) -> None:
        self.told.sink.emit(Faulted(self.told.clock.now(), self.member.step, kind, what, self.ranks[peer]))


def connect_tree(
    config: Config,
    wire: NativeWire,
    rank: int,
    first: tuple[Iterable[int], Plan],
    ranks: Sequence[int],
    numel: int,
    told: EventContext,
    addresses: Mapping[int, tuple[str, int]] | None = None,
) -> TreeConnection:
    """Member, walker and steward over a wire; a member that is not among the first begins apart from them."""
    known, planned = known_network(config.planning, len(ranks)), planner_of(config, numel)

    def replan(members: tuple[int, ...], version: int) -> Plan:
        return replace(planned(manager.network(members, told.clock.now()), version), level=member.plan.level)

    members, plan = first
    member = Member(rank, members, plan, replan)
    tidings = _MembershipEvents(told, member, ranks)
    executor = TreeExecutor(wire, member, executor_config(config), told.clock, addresses)
    executor.on_loss, executor.on_rejoin = tidings.lost, tidings.back
    planning = config.planning
    settings = ReplanConfig(config.plan, planning.gain, planning.interval, planning.relay)
    stewarding = PlanManagerConfig(settings, planning.aware, planning.probe)
    manager = PlanManager(executor, _job(config, numel), known, stewarding, tidings.changed)
    if member.fresh:
        member.reach.clear()
    manager.begin(told.clock.now())
    if member.fresh:
        executor.start_disconnected()
    else:
        if member.coordinator == member.rank:
            tidings.changed(plan, plan.reason)
        executor.start()
    return TreeConnection(wire, executor, manager, ranks)


def executor_config(config: Config) -> ExecutorConfig:
    transport, planning = config.transport, config.planning
    stochastic = config.compress.rounding == "stochastic"
    return ExecutorConfig(
        transport.timeout, transport.tolerance, stochastic, planning.side, planning.elastic, planning.rejoin
    )


def known_network(config: PlanningConfig, world_size: int) -> Matrix:
    """What the user says of the network; without it every pair is taken to be alike until measured."""
    if not config.net:
        return Matrix.of([[1e7] * world_size] * world_size, 0.02, confidence=0.0)
    matrix = from_json(Path(config.net)).matrix
    if matrix.size != world_size:
        raise ConfigError(f"planning.net: {config.net} has {matrix.size} sites, the job {world_size} ranks: one each")
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
    told = exchange.read("plan", 0, dict[str, str])
    if told["error"]:
        raise LinkError(f"rank 0 could not make a plan: {told['error']}")
    return read_plan(told["plan"])


def read_plan(text: str) -> Plan:
    announced = unpack(bytes.fromhex(text))
    assert isinstance(announced, Announce)
    return announced.plan


def written_plan(plan: Plan) -> str:
    return pack(Announce(0, plan.version, 0, 0, plan)).hex()
