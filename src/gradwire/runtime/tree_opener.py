"""Tree opener: opens the trees of a plan for a running session, in the background, where plan = "auto" predicts a gain.

1. rank 0 publishes its plan, the sites that it was made for and the wire through torch's store, or that it has none
2. all ranks connect by that wire. Where LTP gets no answer they use TCP; where TCP gets none either, the same error is
   raised on every rank and the job stays as it is
3. every rank is a member of the plan. Nothing is sent before the first step over it
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import torch.distributed as dist

from gradwire.closing import Closing
from gradwire.config import AUTO_PLAN, Config
from gradwire.decide.registry import is_controller
from gradwire.decide.summable_controller import summable
from gradwire.errors import LinkError, NoAnswerError
from gradwire.events import Event, Faulted, Planned, Sink
from gradwire.plan.tree_forecast import site_names
from gradwire.runtime.ack_source import AckSource
from gradwire.runtime.connections import BuildContext
from gradwire.runtime.route_planner import RoutePlanner, RouteProposal, WireKind
from gradwire.runtime.transport_switch import OpenTransport, TransportSwitch
from gradwire.sites.job_record import model_name
from gradwire.sites.reducer import TreeReducer
from gradwire.transport.bootstrap.store_exchange import StoreExchange
from gradwire.transport.carrier import connect_ltp, connect_tcp
from gradwire.transport.traffic import Traffic
from gradwire.transport.wires.native import NativeWire
from gradwire.tree.setup import EventContext, TreeContext, TreeMembership, connect_tree, read_plan, written_plan


class PublishedRoutes(msgspec.Struct, frozen=True):
    """Rank 0's plan as text, the name of its planner, the ranks of each site, and the wire; `plan` is empty where it
    has none."""

    plan: str = ""
    planner: str = ""
    sites: tuple[tuple[int, ...], ...] = ()
    wire: WireKind = "tcp"


@dataclass(frozen=True, slots=True)
class JobSteps:
    """Events about plans, with the steps of the job: trees count those that they carried."""

    sink: Sink
    transports: TransportSwitch

    def emit(self, event: Event) -> None:
        known = isinstance(event, Planned | Faulted)
        self.sink.emit(msgspec.structs.replace(event, step=self.transports.step) if known else event)


def trees_allowed(config: Config, world_size: int, group: dist.ProcessGroup, *, on_cpu: bool) -> bool:
    """Whether this job may change to trees while it trains: pulses are needed to agree, and what trees cannot do must
    not be configured."""
    plain = not config.local_steps and not config.compress.momentum and config.compress.prune != "zero"
    capped = config.cap is None or summable(config.cap) == config.cap
    chosen = config.plan == AUTO_PLAN and is_controller(config.level) and config.transport.kind != "group"
    return chosen and plain and capped and world_size > 2 and on_cpu and dist.get_backend(group) == "gloo"


def tree_opener(
    context: BuildContext, transports: TransportSwitch, traffic: Traffic, routes: RoutePlanner
) -> Callable[[], OpenTransport]:
    """A function that opens the trees that rank 0 proposes, or raises the same error on all ranks. `routes` has the
    proposal, on rank 0."""
    # Drawn here, where all ranks build their sessions in the same order: threads of two models may begin in any order.
    name = model_name(f"trees/{context.group.group_name}")
    # Lanes between all ranks stay open: what ranks compare beside the trees goes over them.
    lanes = transports.current.pipeline

    def open_trees() -> OpenTransport:
        exchange = _exchange(context, name)
        proposal = routes.proposal
        if context.rank == 0:
            exchange.publish("routes", _published(proposal))  # 1
        published = exchange.read("routes", 0, PublishedRoutes)
        if not published.plan:
            raise LinkError("rank 0 has no plan any more")
        tree = TreeContext(
            config=msgspec.structs.replace(context.config, plan=published.planner),
            numel=context.parameters,
            events=EventContext(context.clock, JobSteps(context.event_bus, transports)),
            network=proposal.network if proposal is not None else None,
            sites=site_names(published.sites),
        )
        members = range(context.world_size)
        place = TreeMembership(number=context.rank, members=members, plan=read_plan(published.plan), ranks=members)
        wire = _connect(context, exchange, published.wire, name)  # 2
        connection = connect_tree(tree, wire, place)  # 3
        reducer = TreeReducer(connection, None)
        traffic.add(connection.source)
        others = [rank for rank in members if rank != context.rank]
        return OpenTransport(
            kind="trees",
            pipeline=lanes,
            footprint=reducer.footprints,
            acks=AckSource(),
            alive=lambda: all(wire.connection_state(rank) == "connected" for rank in others),
            reducer=reducer,
            close=Closing(lambda: traffic.remove(connection.source), reducer.close).close,
        )

    return open_trees


def _published(proposal: RouteProposal | None) -> PublishedRoutes:
    if proposal is None:
        return PublishedRoutes()
    return PublishedRoutes(written_plan(proposal.plan), proposal.plan.planner, proposal.sites, proposal.wire)


def _exchange(context: BuildContext, name: str) -> StoreExchange:
    # A rank may evaluate for minutes before its step.
    exchange = StoreExchange.for_group(context.group, name, context.config.transport.timeout, own_connection=True)
    exchange.find_gone = lambda ranks: context.lost_ranks.probe_ranks(ranks)[0]
    return exchange


def _connect(context: BuildContext, exchange: StoreExchange, wire: WireKind, name: str) -> NativeWire:
    transport = context.config.transport
    if wire == "ltp":
        try:
            return connect_ltp(transport, context.group, exchange)
        except NoAnswerError:
            exchange = _exchange(context, f"{name}/tcp")
    return connect_tcp(transport, context.group, exchange)
