"""Connections: what connects this rank with the others: the tree reducer, the carrier and the pipeline's lanes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass

import torch.distributed as dist

from gradwire.clock import Clock
from gradwire.compress.build import check_chain
from gradwire.compress.error_feedback import ErrorFeedback
from gradwire.compress.gradient_sample import GradientSampler
from gradwire.config import Config
from gradwire.decide.ladder import LADDER
from gradwire.decide.registry import is_built_in, is_controller
from gradwire.decide.warmup import DENSE
from gradwire.errors import GradwireError
from gradwire.exchange.select import FootprintTable, lanes_needed
from gradwire.level import Level
from gradwire.observe.event_bus import EventBus
from gradwire.runtime.job_ranks import JobRanks
from gradwire.runtime.operation_meter import OperationMeter
from gradwire.runtime.pipeline import Pipeline
from gradwire.runtime.plain_path import AllReduceMean
from gradwire.runtime.rank_agreement import CheckFacts
from gradwire.runtime.transport_switch import OpenTransport, TransportSwitch
from gradwire.sense.step_timer import StepTimer
from gradwire.sites.reducer import TreeReducer
from gradwire.sites.setup import open_reducer
from gradwire.transport.carrier import Carrier, open_carrier
from gradwire.transport.lost_rank import LostRankFinder
from gradwire.transport.traffic import Source

# A user's controller may choose any level; these take the most operations in a row.
LONGEST = [Level.parse("sharedk:0.1"), Level.parse("int8+zstd")]


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildContext:
    """What every part of a session is built from."""

    config: Config
    group: dist.ProcessGroup
    parameters: int
    clock: Clock
    event_bus: EventBus
    lost_ranks: LostRankFinder
    timer: StepTimer
    feedback: ErrorFeedback
    check_facts: CheckFacts
    # What `off` does on the process group.
    all_reduce: AllReduceMean
    # Samples the gradient for a controller, on rank 0.
    sampler: GradientSampler | None = None
    # Whether gradients are in host memory.
    on_cpu: bool = True
    # Where the job has more ranks than `group`.
    job_ranks: JobRanks | None = None

    @property
    def rank(self) -> int:
        return self.group.rank()

    @property
    def world_size(self) -> int:
        return self.group.size()


@dataclass(frozen=True, slots=True, kw_only=True)
class Connections:
    """What connects this rank with the others, and the meter of what they carry."""

    reducer: TreeReducer | None
    # Opened first; carries the pulses too.
    carrier: Carrier
    # Reports the traffic of that carrier's own wire; None where the process group carries the lanes.
    wire: Source | None
    transports: TransportSwitch
    meter: OperationMeter


def connect(context: BuildContext, opened: ExitStack) -> Connections:
    """Every member of the group calls this at the same point. `opened` closes what is open if a later part fails."""
    config, group, clock, bus = context.config, context.group, context.clock, context.event_bus
    opened.callback(context.lost_ranks.close)
    reducer = open_reducer(config, group, context.parameters, clock, bus, context.lost_ranks.probe_ranks)
    if reducer is not None:
        opened.callback(quietly, reducer.close)
    lanes = lane_count(config, context.world_size)
    # A plan over TCP has its own wire; only pulses are left for lanes, and the process group carries those.
    needs_wire = lanes > 0 and not (config.planner and config.transport.kind == "tcp")
    carrier = open_carrier(config.transport, group, clock, needs_wire, bus)
    opened.callback(quietly, carrier.close)
    wire = carrier.source()
    meter = OperationMeter(context.timer, own_wire=wire is not None)
    first = OpenTransport(
        kind="group" if wire is None else "tcp" if carrier.kernel_tcp else "ltp",
        pipeline=Pipeline(carrier.open(lanes), meter.on_lane, context.timer.worked),
        footprint=reducer.footprints
        if reducer is not None
        else FootprintTable(context.world_size, own_wire=wire is not None),
        own_wire=wire is not None,
        tolerance=carrier.tolerance,
        release=carrier.close,
        reducer=reducer,
    )
    transports = TransportSwitch(first)
    opened.callback(quietly, transports.close_lanes)
    return Connections(reducer=reducer, carrier=carrier, wire=wire, transports=transports, meter=meter)


def lane_count(config: Config, world_size: int) -> int:
    """Lanes for the longest exchange of any level that this job may use."""
    if world_size == 1:
        return 0
    if config.planner:
        return 1 if config.observe.verify and not config.planning.elastic else 0
    if is_controller(config.level):
        candidates = [rung.level for rung in LADDER] if is_built_in(config.level) else LONGEST
        if config.cap is not None:
            check_chain(config.cap, setting="lossiest")
            candidates = [*candidates, config.cap]
        return max(map(lanes_needed, candidates))
    level = Level.parse(config.level)
    check_chain(level)
    if level.off and config.transport.kind in ("auto", "group"):
        return 0
    return max(lanes_needed(level), lanes_needed(DENSE) if level.select == "lowrank" else 0)


def quietly(close: Callable[[], None]) -> None:
    """Close a part after another failed: the first failure is the error to raise, not what follows from it."""
    with suppress(GradwireError):
        close()
