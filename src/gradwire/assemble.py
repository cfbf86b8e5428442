"""Assemble: configuration in, a session out. The only place where concrete classes are chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from gradwire.aggregate.exchange import phases
from gradwire.aggregate.footprint import Footprints
from gradwire.carry import Carrier, open_carrier
from gradwire.clock import Clock, MonotonicClock
from gradwire.collective.absent import Absent
from gradwire.compress.build import check_chain
from gradwire.compress.feedback import Feedback
from gradwire.config import Config
from gradwire.decide.fixed import Fixed
from gradwire.decide.ladder import LADDER
from gradwire.decide.registry import is_controller, is_ours, make_controller
from gradwire.decide.start import start
from gradwire.decide.summable import Summable
from gradwire.errors import GradwireError
from gradwire.events import Failed
from gradwire.flow import Bucket
from gradwire.govern import Adaptive, FootprintOf, Governor, Heard, Instruments, Steady
from gradwire.level import Level
from gradwire.look import first_look
from gradwire.observe.recorder import Recorder, Tape
from gradwire.observe.tally import Tally
from gradwire.observe.watch import Watch, attached
from gradwire.pipeline import Pipeline
from gradwire.planned import open_planned
from gradwire.sense.stopwatch import Stopwatch
from gradwire.session import Plain, Rooms, Session
from gradwire.standing import facts_of
from gradwire.traffic import Source, Traffic
from gradwire.transport.alike import require_alike
from gradwire.transport.base import Timing
from gradwire.transport.ledger import EVERYBODY, Ledger
from gradwire.transport.notes import Notes

# Somebody else's controller may choose any level; these take the most operations in a row.
LONGEST = [Level.parse("sharedk:0.1"), Level.parse("int8+zstd")]

Agree = Callable[[Mapping[str, str]], None]


@dataclass(frozen=True, slots=True)
class Assembly:
    """A session and the parts its handle talks to."""

    session: Session
    feedback: Feedback
    tally: Tally
    governor: Governor
    watch: Watch
    agree: Agree


def assemble(config: Config, group: dist.ProcessGroup, parameters: int, plain: Plain | None = None) -> Assembly:
    """Build the rooms over an existing process group. Every member of the group calls this at the same point.

    `plain` is what `off` does: DDP's all-reduce, unless the door's own framework does it another way.
    """
    rank, world_size = dist.get_rank(group), group.size()
    agree = agreeing(config, group)
    agree(facts_of(config))
    clock, feedback = MonotonicClock(), Feedback(rank, world_size)
    watch = open_watch(config, rank, world_size, clock)
    watch.emit(attached(clock.now(), (rank, world_size), parameters, config.to_dict()))
    with ExitStack() as opened:
        opened.callback(quietly, lambda: watch.close(0))
        try:
            session, governor = connect(config, group, parameters, plain, (feedback, watch, clock), opened)
        except GradwireError as error:
            watch.emit(Failed(clock.now(), 0, f"{type(error).__name__}: {error}"))
            raise
        opened.pop_all()
    return Assembly(session, feedback, watch.tally, governor, watch, agree)


def quietly(close: Callable[[], None]) -> None:
    """Close what was opened before something failed: that is the error to raise, not what follows from it."""
    with suppress(GradwireError):
        close()


def connect(
    config: Config,
    group: dist.ProcessGroup,
    parameters: int,
    plain: Plain | None,
    base: tuple[Feedback, Watch, Clock],
    opened: ExitStack,
) -> tuple[Session, Governor]:
    """Everything that waits for other ranks; `opened` closes what is there, should one of them not come."""
    feedback, watch, clock = base
    rank, world_size, stopwatch = dist.get_rank(group), group.size(), Stopwatch()
    # What the group's own collectives carry; wires of ours keep their own books.
    groups = Ledger()

    def on_plain(started: float, finished: float, nbytes: int) -> None:
        stopwatch.operation(started, finished, nbytes)
        groups.came(EVERYBODY, nbytes, finished - started)

    def on_timing(timing: Timing) -> None:
        stopwatch.operation(timing.started, timing.finished, timing.nbytes)
        if wire is None:
            enter(groups, timing)

    planned = open_planned(config, group, parameters, clock, watch)
    if planned is not None:
        opened.callback(quietly, planned.close)
    # A plan over TCP has its own wire; only pulses are left for lanes, and the group carries those.
    needed = not_only_off(config, world_size) and not (config.plan and config.transport.kind == "tcp")
    carrier = open_carrier(config.transport, group, clock, needed, watch)
    opened.callback(quietly, carrier.close)
    wire = carrier.source()
    pipeline = Pipeline(carrier.open(lanes_needed(config, world_size)), on_timing, stopwatch.worked)
    opened.callback(quietly, pipeline.close)
    footprint = planned.footprint if planned else Footprints(world_size)
    across = planned.source() if planned else None
    sources = [source for source in (Source(groups), wire, across) if source is not None]
    traffic = Traffic(rank, watch, clock, sources)
    parts = Instruments(stopwatch, clock, watch, traffic), footprint
    governor = govern(config, group, carrier, parts, parameters)
    # A job that only ever does what DDP does also waits as DDP does.
    patience = config.transport.timeout if is_controller(config.level) else None
    ways = (plain or plain_all_reduce(group), watch, clock, stopwatch, on_plain)
    rooms = Rooms(governor, feedback, pipeline, *ways, carrier.tolerance, carrier.close, planned, patience)
    session = Session(rank, world_size, config.compress, rooms, config.observe.verify)
    if world_size > 1:
        traffic.begin()
    return session, governor


def agreeing(config: Config, group: dist.ProcessGroup) -> Agree:
    """Facts in, ConfigError on every rank when one rank's differ. All ranks ask at the same points; one that was
    started anew, while the others train, asks nobody."""

    def agree(facts: Mapping[str, str]) -> None:
        store = dist.distributed_c10d._get_default_store()
        if group.size() > 1 and store is not None and not isinstance(group, Absent):
            place = group.rank(), group.size()
            require_alike(Notes.open(store, f"alike/{group.group_name}", *place, config.transport.timeout), facts)

    return agree


def open_watch(config: Config, rank: int, world_size: int, clock: Clock) -> Watch:
    """Who hears of events: the tally always, a recorder where a directory is named."""
    if not config.record:
        return Watch(clock)
    tape = Tape(Path(config.record), rank, world_size, config.observe.detail == "buckets")
    return Watch(clock, Recorder(tape, clock))


def lanes_needed(config: Config, world_size: int) -> int:
    """Enough for the longest exchange that any level this job may use takes."""
    if world_size == 1:
        return 0
    if config.plan:
        return 1 if config.observe.verify else 0
    if is_controller(config.level):
        candidates = [rung.level for rung in LADDER] if is_ours(config.level) else LONGEST
        return max(map(phases, candidates))
    level = Level.parse(config.level)
    check_chain(level)
    return 0 if level.off else phases(level)


def not_only_off(config: Config, world_size: int) -> bool:
    return lanes_needed(config, world_size) > 0


def govern(
    config: Config, group: dist.ProcessGroup, carrier: Carrier, parts: tuple[Instruments, FootprintOf], parameters: int
) -> Governor:
    """A fixed level, or a controller with a lane for its pulses and a start that this network carries."""
    rank, world_size = dist.get_rank(group), group.size()
    if not is_controller(config.level) or world_size == 1:
        level = Level() if is_controller(config.level) else Level.parse(config.level)
        return Steady(Fixed(level, world_size, config.compress.warmup), world_size, parts[0])
    line = Pipeline(carrier.open(1, host=True), lambda timing: None)
    # Under a plan only pulses travel here, and they say nothing of bandwidth: that is what the steps show of the trees.
    try:
        rate = None if config.plan else first_look(line, world_size)
    except GradwireError:
        quietly(line.close)
        raise
    whole = Bucket(index=-1, step=0, numel=parameters, itemsize=4, slices=(), is_last=True)
    begin = start(rate, lambda level: parts[1](level, whole).wire_bytes)
    controller = make_controller(config.level)
    chooser = Summable(controller) if config.plan else controller
    heard: Heard = (carrier.links, dict if config.plan else carrier.moved)
    return Adaptive(rank, chooser, begin, line, parts, world_size, heard)


def enter(ledger: Ledger, timing: Timing) -> None:
    """An operation of the group's into the books: by peer where the lane told when each one's part came."""
    if not timing.arrivals:
        ledger.came(EVERYBODY, timing.nbytes, timing.finished - timing.started)
    for peer, at in timing.arrivals:
        ledger.came(peer, timing.nbytes // len(timing.arrivals), at - timing.started)


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
