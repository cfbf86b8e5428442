"""A transport switch over given pipelines, for tests of what uses one."""

from __future__ import annotations

from gradwire.exchange.select import FootprintTable
from gradwire.runtime.pipeline import Pipeline
from gradwire.runtime.transport_switch import Opener, OpenTransport, TransportSwitch
from gradwire.types import TransportKind


def open_transport(
    pipeline: Pipeline,
    world_size: int,
    kind: TransportKind = "group",
    *,
    own_wire: bool = False,
    tolerance: float = 1.0,
) -> OpenTransport:
    table = FootprintTable(world_size, own_wire=own_wire)
    return OpenTransport(kind=kind, pipeline=pipeline, footprint=table, own_wire=own_wire, tolerance=tolerance)


def transport_of(
    pipeline: Pipeline,
    world_size: int,
    opener: Opener | None = None,
    *,
    own_wire: bool = False,
    tolerance: float = 1.0,
) -> TransportSwitch:
    first = open_transport(pipeline, world_size, own_wire=own_wire, tolerance=tolerance)
    return TransportSwitch(first, opener)
