"""Open governor: chooses the governor of a session from its configuration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gradwire.config import AUTO_PERIOD, Config
from gradwire.decide.base import Controller
from gradwire.decide.capped import CappedController
from gradwire.decide.fixed import Fixed, FixedLevel
from gradwire.decide.initial_level import initial_level
from gradwire.decide.period import PERIODS
from gradwire.decide.period_controller import PeriodController, local_levels
from gradwire.decide.registry import is_controller, make_controller
from gradwire.decide.summable_controller import SummableController
from gradwire.decide.transport_choice import TransportChooser
from gradwire.errors import GradwireError
from gradwire.level import Level
from gradwire.runtime.ack_source import AckSource
from gradwire.runtime.adaptive_governor import AdaptiveGovernor, OpenChoice
from gradwire.runtime.connections import BuildContext, Connections, quietly
from gradwire.runtime.governor import FixedGovernor, Governor, GovernorContext
from gradwire.runtime.kernel_acks import kernel_acks
from gradwire.runtime.pipeline import Pipeline
from gradwire.runtime.plan_governor import PlanGovernor
from gradwire.runtime.pulse_exchange import PULSE_LANES, broadcast_decision
from gradwire.runtime.route_planner import RoutePlanner, WireKind
from gradwire.runtime.startup_probe import probe_bandwidth, probe_shared_uplink
from gradwire.runtime.transport_opener import transport_opener
from gradwire.runtime.transport_switch import OpenTransport, TransportSwitch
from gradwire.runtime.tree_opener import tree_opener, trees_allowed
from gradwire.sites.topology import find_sites
from gradwire.transport.bootstrap.store_exchange import StoreExchange
from gradwire.transport.carrier import Carrier
from gradwire.transport.lanes.base import Lane
from gradwire.transport.lanes.open_lanes import group_of, open_lanes
from gradwire.transport.traffic import Source, Traffic
from gradwire.tree.setup import decided_by_plan
from gradwire.types import Bucket, Decision, TransportKind


def governor_context(context: BuildContext, connections: Connections) -> GovernorContext:
    reducer, transports = connections.reducer, connections.transports
    trees = reducer.source() if reducer is not None else None
    sources = [source for source in (Source(connections.meter.ledger), connections.wire, trees) if source is not None]
    job = context.job_ranks
    if job is not None:
        for source in sources:
            source.ranks = job.exchanging
    return GovernorContext(
        rank=context.rank,
        world_size=context.world_size,
        timer=context.timer,
        clock=context.clock,
        sink=context.event_bus,
        traffic=Traffic(context.rank if job is None else job.rank, context.event_bus, context.clock, sources),
        footprint=transports.footprint,
        explain=context.lost_ranks.explained,
        sampler=context.sampler,
        plan_version=transports.plan_version,
        unit=_unit(context.config),
        job_ranks=job,
    )


def _unit(config: Config) -> str:
    if not config.local_steps:
        return "step"
    return "exchange" if config.sync_every == AUTO_PERIOD and not config.voted_rounds else "round"


def open_governor(context: BuildContext, connections: Connections, governor: GovernorContext) -> Governor:
    """The plan's level, a controller with pulses, or a fixed level. All ranks call this at the same point."""
    config, world_size, reducer = context.config, context.world_size, connections.reducer
    places = config.planning.places(world_size)
    if reducer is not None and (decided_by_plan(config) or config.voted_rounds):
        first = initial_level(None, lambda _: 0, config.cap)
        if not is_controller(config.level):
            first = Fixed(Level.parse(config.level), places).at(0)
        if config.voted_rounds:
            first = replace(first, sync_every=PERIODS[0])
        return PlanGovernor(governor, _controller(config), first, reducer)
    if (is_controller(config.level) or config.sync_every == AUTO_PERIOD) and world_size > 1:
        return _open_adaptive(context, connections, governor)
    level = Level() if is_controller(config.level) else Level.parse(config.level)
    return FixedGovernor(Fixed(level, places, config.warmup), governor)


def _open_adaptive(context: BuildContext, connections: Connections, governor: GovernorContext) -> AdaptiveGovernor:
    """A controller with lanes for its pulses, and a first level that suits this network."""
    config, carrier, transports = context.config, connections.carrier, connections.transports
    pipeline = Pipeline(_pulse_lanes(context, carrier), lambda timing: None)
    try:
        first = _first_decision(context, governor, pipeline, transports.current.pipeline)
    except GradwireError:
        quietly(pipeline.close)
        raise
    if carrier.kernel_tcp and not config.planner:
        acks = kernel_acks(context.group, config.transport.timeout)
    else:
        acks = AckSource(carrier.links, dict if config.planner else carrier.moved)
    choice = _transport_choice(context, transports, governor)
    start = replace(first, transport=transports.current.kind)
    return AdaptiveGovernor(governor, _controller(config), start, pipeline, transports, acks, choice)


def _pulse_lanes(context: BuildContext, carrier: Carrier) -> Sequence[Lane]:
    """Between all ranks that decide together."""
    job, timeout = context.job_ranks, context.config.transport.timeout
    if job is None:
        return carrier.open(PULSE_LANES)
    return open_lanes(group_of(job.ranks, timeout), PULSE_LANES, timeout, context.clock)


def _first_decision(
    context: BuildContext, governor: GovernorContext, pipeline: Pipeline, exchanges: Pipeline
) -> Decision:
    """`pipeline` has the lanes of the pulses, `exchanges` those of the gradients."""
    config, ranks = context.config, governor.deciding
    # With a plan these lanes carry pulses alone, so their bandwidth is not that of the trees: the steps will show that.
    rate = None
    if governor.job_ranks is not None:
        rate = probe_shared_uplink(exchanges, context.world_size, pipeline, ranks.size)
    elif not config.planner:
        rate = probe_bandwidth(pipeline, context.world_size)
    whole = Bucket(index=-1, step=0, numel=context.parameters, itemsize=4, slices=(), is_last=True)
    first = initial_level(rate, lambda level: governor.footprint(level, (whole,))[0].wire_bytes, config.cap)
    if not is_controller(config.level):
        first = Fixed(Level.parse(config.level), context.world_size).at(0)
    # Shards may differ in size, and so in what they would choose.
    return first if governor.job_ranks is None else broadcast_decision(pipeline, first, ranks.rank)


def _transport_choice(context: BuildContext, transports: TransportSwitch, governor: GovernorContext) -> OpenChoice:
    """What this job may change to while it trains. Sets the switch's opener."""
    config, group = context.config, context.group
    open_wire = transport_opener(context, governor.traffic.add)
    offered: list[TransportKind] = ["tcp", "ltp"] if open_wire is not None else []
    routes = None
    if trees_allowed(config, context.world_size, group, on_cpu=context.on_cpu):
        exchange = StoreExchange.for_group(group, "sites", config.transport.timeout)
        kind = config.transport.kind
        wire: WireKind | None = kind if kind in ("tcp", "ltp") else None
        routes = RoutePlanner(context.world_size, find_sites(exchange, config.planning.sites), wire)
        open_trees = tree_opener(context, transports, governor.traffic, routes)
        offered.append("trees")

        def opener(kind: TransportKind) -> OpenTransport:
            if kind != "trees" and open_wire is not None:
                return open_wire(kind)
            return open_trees()

        transports.opener = opener
    else:
        transports.opener = open_wire
    if not offered:
        return OpenChoice()
    return OpenChoice(TransportChooser(offered, transports.current.kind), routes)


def _controller(config: Config) -> Controller:
    """The configured controller, limited to what trees can sum where there is a plan, and to the user's cap; with local
    steps, where the configuration leaves their number to it."""
    if not is_controller(config.level):
        level = Level.parse(config.level)
        return PeriodController(FixedLevel(level), (level,), synchronous=not config.voted_rounds)
    controller = make_controller(config.level, config.cap, config.extra_steps)
    if config.planner:
        controller = SummableController(controller)
    if config.cap is not None:
        controller = CappedController(controller, config.cap)
    if config.sync_every != AUTO_PERIOD:
        return controller
    levels, dear = local_levels(config.cap, config.extra_steps), config.extra_steps
    return PeriodController(controller, levels, dear, synchronous=not config.voted_rounds)
