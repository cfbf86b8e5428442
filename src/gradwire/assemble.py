"""Assemble: configuration in, a session out. The only place where concrete classes are chosen."""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from gradwire.aggregate.exchange import phases
from gradwire.aggregate.footprint import Footprints
from gradwire.carry import Carrier, open_carrier
from gradwire.clock import Clock, MonotonicClock
from gradwire.compress.build import check_chain
from gradwire.compress.feedback import Feedback
from gradwire.config import Config
from gradwire.decide.auto import START
from gradwire.decide.fixed import Fixed
from gradwire.decide.ladder import LADDER
from gradwire.decide.registry import is_controller, is_ours, make_controller
from gradwire.events import Attached
from gradwire.flow import Decision
from gradwire.govern import Adaptive, Governor, Steady
from gradwire.level import Level
from gradwire.observe.tally import Tally
from gradwire.pipeline import Pipeline
from gradwire.sense.stopwatch import Stopwatch
from gradwire.session import Plain, Rooms, Session
from gradwire.transport.base import Timing

# Somebody else's controller may choose any level; these take the most operations in a row.
LONGEST = [Level.parse("sharedk:0.1"), Level.parse("int8+zstd")]


@dataclass(frozen=True, slots=True)
class Assembly:
    """A session and the parts its handle talks to."""

    session: Session
    feedback: Feedback
    tally: Tally
    governor: Governor


def assemble(config: Config, group: dist.ProcessGroup, parameters: int, plain: Plain | None = None) -> Assembly:
    """Build the rooms over an existing process group. Every member of the group calls this at the same point.

    `plain` is what `off` does: DDP's all-reduce, unless the door's own framework does it another way.
    """
    rank, world_size = dist.get_rank(group), group.size()
    clock, tally, stopwatch = MonotonicClock(), Tally(), Stopwatch()
    feedback = Feedback(rank, world_size)
    tally.emit(Attached(clock.now(), rank, world_size, parameters, config.to_dict()))

    def on_timing(timing: Timing) -> None:
        stopwatch.operation(timing.started, timing.finished, timing.nbytes)

    carrier = open_carrier(config.transport, group, clock, needed=not_only_off(config, world_size))
    pipeline = Pipeline(carrier.open(lanes_needed(config, world_size)), on_timing, stopwatch.worked)
    governor = govern(config, group, carrier, (stopwatch, clock, tally))
    parts = (plain or plain_all_reduce(group), tally, clock, stopwatch)
    rooms = Rooms(governor, feedback, pipeline, *parts, carrier.tolerance, carrier.close)
    session = Session(rank, world_size, config.compress, rooms, config.observe.verify)
    return Assembly(session, feedback, tally, governor)


def lanes_needed(config: Config, world_size: int) -> int:
    """Enough for the longest exchange that any level this job may use takes."""
    if world_size == 1:
        return 0
    if is_controller(config.level):
        candidates = [rung.level for rung in LADDER] if is_ours(config.level) else LONGEST
        return max(map(phases, candidates))
    level = Level.parse(config.level)
    check_chain(level)
    return 0 if level.off else phases(level)


def not_only_off(config: Config, world_size: int) -> bool:
    return lanes_needed(config, world_size) > 0


def govern(
    config: Config, group: dist.ProcessGroup, carrier: Carrier, parts: tuple[Stopwatch, Clock, Tally]
) -> Governor:
    """A fixed level, or a controller with a lane for its pulses."""
    rank, world_size = dist.get_rank(group), group.size()
    if not is_controller(config.level) or world_size == 1:
        level = Level() if is_controller(config.level) else Level.parse(config.level)
        return Steady(Fixed(level, world_size, config.compress.warmup))
    stopwatch, clock, tally = parts
    line = Pipeline(carrier.open(1), lambda timing: None)
    start = Decision(START, "the network has not been measured yet")
    footprint = Footprints(world_size)
    controller = make_controller(config.level)
    return Adaptive(rank, controller, start, line, (stopwatch, clock, tally, footprint), world_size)


def plain_all_reduce(group: dist.ProcessGroup) -> Plain:
    """What DDP does without a hook, to the bit: scale by the reciprocal, then sum on DDP's own group."""
    scale = 1.0 / group.size()

    def all_reduce(buffer: Tensor) -> Future[list[Tensor]]:
        buffer.mul_(scale)
        return dist.all_reduce(buffer, group=group, async_op=True).get_future()  # type: ignore[no-any-return]

    return all_reduce


def average(group: dist.ProcessGroup) -> Plain:
    """What HSDP does without us, to the bit: the backend's own average."""

    def all_reduce(buffer: Tensor) -> Future[list[Tensor]]:
        work = dist.all_reduce(buffer, dist.ReduceOp.AVG, group=group, async_op=True)
        return work.get_future()  # type: ignore[no-any-return]

    return all_reduce
