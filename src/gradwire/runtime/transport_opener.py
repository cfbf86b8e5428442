"""Transport opener: opens a wire of gradwire's own for a running session, in the background.

Only jobs whose configuration leaves the transport open get one, and only where a wire can replace the group's
collectives: gradients in host memory, over gloo, without a plan (which has a wire of its own).
"""

from __future__ import annotations

from collections.abc import Callable

import torch.distributed as dist

from gradwire.config import AUTO_PERIOD
from gradwire.decide.registry import is_controller
from gradwire.exchange.select import FootprintTable
from gradwire.runtime.ack_source import AckSource
from gradwire.runtime.connections import BuildContext, lane_count
from gradwire.runtime.operation_meter import OperationMeter
from gradwire.runtime.pipeline import Pipeline
from gradwire.runtime.transport_switch import Opener, OpenTransport
from gradwire.sites.job_record import model_name
from gradwire.transport.bootstrap.store_exchange import StoreExchange
from gradwire.transport.carrier import WireCarrier, connect_ltp, connect_tcp
from gradwire.transport.traffic import Source
from gradwire.types import TransportKind


def transport_opener(context: BuildContext, add_source: Callable[[Source], None]) -> Opener | None:
    """A function that opens a wire to all ranks, or raises the same error on all of them. None where none may be
    opened. `add_source` is told where to read the wire's counters."""
    config, group, world_size = context.config, context.group, context.world_size
    chosen = config.transport.kind == "auto" and not config.planner and is_controller(config.level)
    # Rounds of a fixed length are few and long: a trial of some rounds would take longer than what it could save.
    chosen = chosen and (not config.local_steps or config.sync_every == AUTO_PERIOD)
    if not chosen or world_size == 1 or not context.on_cpu or dist.get_backend(group) != "gloo":
        return None

    # Drawn here, where all ranks build their sessions in the same order: threads of two models may begin in any order.
    name = model_name(f"transport/{group.group_name}")

    def open_transport(kind: TransportKind) -> OpenTransport:
        # A rank may evaluate for minutes before its step.
        exchange = StoreExchange.for_group(group, f"{name}/{kind}", config.transport.timeout, own_connection=True)
        exchange.find_gone = lambda ranks: context.lost_ranks.probe_ranks(ranks)[0]
        connect = connect_ltp if kind == "ltp" else connect_tcp
        carrier = WireCarrier(connect(config.transport, group, exchange), world_size, config.transport, context.clock)
        lanes = carrier.open(lane_count(config, world_size))
        meter = OperationMeter(context.timer, own_wire=True)
        add_source(carrier.source())
        return OpenTransport(
            kind=kind,
            pipeline=Pipeline(lanes, meter.on_lane, context.timer.worked),
            footprint=FootprintTable(world_size, own_wire=True),
            own_wire=True,
            tolerance=carrier.tolerance,
            acks=AckSource(carrier.links, carrier.moved) if kind == "ltp" else None,
            release=carrier.close,
            alive=carrier.alive,
        )

    return open_transport
