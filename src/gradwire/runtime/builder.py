"""Assemble: configuration in, a session out. The only place where concrete classes are chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from gradwire.clock import Clock, MonotonicClock
from gradwire.closing import Closing
from gradwire.compress.build import check_chain
from gradwire.compress.error_feedback import ErrorFeedback
from gradwire.config import Config
from gradwire.decide.fixed import Fixed
from gradwire.decide.initial_level import start
from gradwire.decide.ladder import LADDER
from gradwire.decide.registry import is_controller, is_ours, make_controller
from gradwire.decide.summable_controller import SummableController
from gradwire.errors import GradwireError
from gradwire.events import Event, Failed, Faulted, Warned
from gradwire.exchange.select import FootprintTable, lanes_needed
from gradwire.level import Level
from gradwire.observe.event_bus import EventBus, attached, host_name
from gradwire.observe.recorder import RecorderConfig, Recorder
from gradwire.observe.summary import SummarySink
from gradwire.runtime.governor import AdaptiveGovernor, FixedGovernor, FootprintOf, Governor, Heard, Instruments
from gradwire.runtime.pipeline import Pipeline
from gradwire.runtime.plan_governor import PlanGovernor
from gradwire.runtime.session import Plain, Session, SessionParts
from gradwire.runtime.startup_probe import first_look
from gradwire.sense.step_timer import StepTimer
from gradwire.sites.job_record import facts_of, seat
from gradwire.sites.placeholder_group import PlaceholderGroup
from gradwire.sites.reducer import open_reducer
from gradwire.transport.bootstrap.config_check import require_same_settings
from gradwire.transport.bootstrap.replica_check import ReplicaCheck
from gradwire.transport.bootstrap.store_exchange import StoreExchange
from gradwire.transport.carrier import Carrier, open_carrier
from gradwire.transport.lanes.base import Timing
from gradwire.transport.liveness import Liveness
from gradwire.transport.traffic import Source, Traffic
from gradwire.transport.wires.ledger import ALL_PEERS, Ledger
from gradwire.tree.setup import decided_by_plan
from gradwire.types import Bucket

# Somebody else's controller may choose any level; these take the most operations in a row.
LONGEST = [Level.parse("sharedk:0.1"), Level.parse("int8+zstd")]

Agree = Callable[[Mapping[str, str]], None]


@dataclass(frozen=True, slots=True)
class BuiltSession:
    """A session and the parts its handle talks to."""

    session: Session
    feedback: ErrorFeedback
    tally: SummarySink
    governor: Governor
    watch: EventBus
    agree: Agree
    # Compares replicas through torch's store, where ranks come and go.
    compared: ReplicaCheck | None = None


def build(config: Config, group: dist.ProcessGroup, parameters: int, plain: Plain | None = None) -> BuiltSession:
    """Build the rooms over an existing process group. Every member of the group calls this at the same point.

    `plain` is what `off` does: DDP's all-reduce, unless the door's own framework does it another way.
    """
    rank, world_size = dist.get_rank(group), group.size()
    agree = agreeing(config, group)
    agree(facts_of(config))
    clock, feedback, presence = MonotonicClock(), ErrorFeedback(rank, world_size), Liveness()
    watch = open_watch(config, rank, world_size, clock)
    watch.emit(attached(clock.now(), (rank, world_size), parameters, config.to_dict()))
    with ExitStack() as opened:
        opened.callback(quietly, lambda: watch.close(0))
        try:
            base = feedback, watch, clock, presence
            session, governor, compared = connect(config, group, parameters, plain, base, opened)
            meet(presence, config, group, watch)
            session.scaling.all_found = everybody(config, group)
        except GradwireError as error:
            watch.emit(Failed(clock.now(), 0, f"{type(error).__name__}: {error}"))
            raise
        opened.pop_all()
    return BuiltSession(session, feedback, watch.summary_sink, governor, watch, agree, compared)


def quietly(close: Callable[[], None]) -> None:
    """Close what was opened before something failed: that is the error to raise, not what follows from it."""
    with suppress(GradwireError):
        close()


def connect(
    config: Config,
    group: dist.ProcessGroup,
    parameters: int,
    plain: Plain | None,
    base: tuple[ErrorFeedback, EventBus, Clock, Liveness],
    opened: ExitStack,
) -> tuple[Session, Governor, ReplicaCheck | None]:
    """Everything that waits for other ranks; `opened` closes what is there, should one of them not come."""
    feedback, watch, clock, presence = base
    opened.callback(presence.close)
    rank, world_size, stopwatch = dist.get_rank(group), group.size(), StepTimer()
    # What the group's own collectives carry; wires of ours keep their own books.
    groups = Ledger()

    def on_plain(started: float, finished: float, nbytes: int) -> None:
        stopwatch.operation(started, finished, nbytes)
        groups.add_received(ALL_PEERS, nbytes, finished - started)

    def on_timing(timing: Timing) -> None:
        stopwatch.operation(timing.started, timing.finished, timing.nbytes)
        if wire is None:
            enter(groups, timing)

    planned = open_reducer(config, group, parameters, clock, watch, presence.probe_ranks)
    if planned is not None:
        opened.callback(quietly, planned.close)
    # A plan over TCP has its own wire; only pulses are left for lanes, and the group carries those.
    needed = lane_count(config, world_size) > 0 and not (config.plan and config.transport.kind == "tcp")
    carrier = open_carrier(config.transport, group, clock, needed, watch)
    opened.callback(quietly, carrier.close)
    wire = carrier.source()
    pipeline = Pipeline(carrier.open(lane_count(config, world_size)), on_timing, stopwatch.worked)
    opened.callback(quietly, pipeline.close)
    footprint = planned.footprint if planned else FootprintTable(world_size, own_wire=wire is not None)
    across = planned.source() if planned else None
    sources = [source for source in (Source(groups), wire, across) if source is not None]
    traffic = Traffic(rank, watch, clock, sources)
    version = planned.version if planned else lambda: 0
    parts = Instruments(stopwatch, clock, watch, traffic, presence.explained, version), footprint
    if planned is not None and decided_by_plan(config):
        chooser = SummableController(make_controller(config.level))
        governor: Governor = PlanGovernor(chooser, start(None, lambda _: 0), planned, parts, world_size)
    else:
        governor = govern(config, group, carrier, parts, parameters)
    opened.callback(quietly, governor.close)
    compared = comparison(config, group, watch, clock)
    if compared is not None:
        opened.callback(compared.close)
    # A job that only ever does what DDP does also waits as DDP does.
    patience = config.transport.timeout if is_controller(config.level) else None
    ways = (plain or plain_all_reduce(group), watch, clock, stopwatch, on_plain)

    ends = [] if compared is None else [compared.close]
    release = Closing(presence.close, *ends, carrier.close).close
    lost = planned, patience, presence.explained, wire is not None, compared.compare if compared else None
    rooms = SessionParts(governor, feedback, pipeline, *ways, carrier.tolerance, release, *lost)
    session = Session(rank, world_size, config.compress, rooms, config.observe.verify)
    if world_size > 1:
        opened.callback(traffic.stop)
        traffic.start()
    return session, governor, compared


def comparison(config: Config, group: dist.ProcessGroup, watch: EventBus, clock: Clock) -> ReplicaCheck | None:
    """Compares replicas where ranks come and go; None where all of them are there and a collective does it."""
    store = dist.distributed_c10d._get_default_store()
    if not (config.plan and config.planning.elastic and config.observe.verify) or group.size() == 1 or store is None:
        return None
    name = seat(f"verify/{group.group_name}")

    def warn(text: str) -> None:
        watch.emit(Warned(clock.now(), text))

    return ReplicaCheck(store, name, group.rank(), warn, joined=isinstance(group, PlaceholderGroup))


def meet(presence: Liveness, config: Config, group: dist.ProcessGroup, watch: EventBus) -> None:
    """Let errors name the rank that is gone. Last, so that wires have the first choice of ports."""
    store = dist.distributed_c10d._get_default_store()
    if group.size() == 1 or store is None or isinstance(group, PlaceholderGroup):
        return
    presence.open(StoreExchange.for_group(group, "presence", config.transport.timeout), host_name())

    def heard(event: Event) -> None:
        if isinstance(event, Faulted) and event.kind == "peer_back" and event.peer is not None:
            presence.forget(event.peer)

    if config.planning.elastic:
        watch.add(heard)


def agreeing(config: Config, group: dist.ProcessGroup) -> Agree:
    """Facts in, ConfigError on every rank when one rank's differ. All ranks ask at the same points; one that was
    started anew, while the others train, asks nobody."""

    def agree(facts: Mapping[str, str]) -> None:
        store = dist.distributed_c10d._get_default_store()
        if group.size() > 1 and store is not None and not isinstance(group, PlaceholderGroup):
            require_same_settings(StoreExchange.for_group(group, "alike", config.transport.timeout), facts)

    return agree


def everybody(config: Config, group: dist.ProcessGroup) -> Callable[[bool], bool]:
    """Whether something holds on every rank; all of them ask at the same step. Where ranks come and go, whoever asks
    goes by itself."""

    def holds(here: bool) -> bool:
        store = dist.distributed_c10d._get_default_store()
        if group.size() == 1 or store is None or config.planning.elastic:
            return here
        exchange = StoreExchange.for_group(group, "everybody", config.transport.timeout)
        return all(exchange.gather("answer", here, bool))

    return holds


def open_watch(config: Config, rank: int, world_size: int, clock: Clock) -> EventBus:
    """Who hears of events: the tally always, a recorder where a directory is named."""
    if not config.record:
        return EventBus(clock)
    tape = RecorderConfig(Path(config.record), rank, world_size, config.observe.detail == "buckets")
    return EventBus(clock, Recorder(tape, clock))


def lane_count(config: Config, world_size: int) -> int:
    """Enough for the longest exchange that any level this job may use takes."""
    if world_size == 1:
        return 0
    if config.plan:
        return 1 if config.observe.verify and not config.planning.elastic else 0
    if is_controller(config.level):
        candidates = [rung.level for rung in LADDER] if is_ours(config.level) else LONGEST
        return max(map(lanes_needed, candidates))
    level = Level.parse(config.level)
    check_chain(level)
    return 0 if level.off and config.transport.kind == "group" else lanes_needed(level)


def govern(
    config: Config, group: dist.ProcessGroup, carrier: Carrier, parts: tuple[Instruments, FootprintOf], parameters: int
) -> Governor:
    """A fixed level, or a controller with a lane for its pulses and a start that this network carries."""
    rank, world_size = dist.get_rank(group), group.size()
    if not is_controller(config.level) or world_size == 1:
        level = Level() if is_controller(config.level) else Level.parse(config.level)
        return FixedGovernor(Fixed(level, world_size, config.compress.warmup), world_size, parts[0])
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
    chooser = SummableController(controller) if config.plan else controller
    heard: Heard = (carrier.links, dict if config.plan else carrier.moved)
    return AdaptiveGovernor(rank, chooser, begin, line, parts, world_size, heard)


def enter(ledger: Ledger, timing: Timing) -> None:
    """An operation of the group's into the books: by peer where the lane told when each one's part came."""
    if not timing.arrivals:
        ledger.add_received(ALL_PEERS, timing.nbytes, timing.finished - timing.started)
    for peer, at in timing.arrivals:
        ledger.add_received(peer, timing.nbytes // len(timing.arrivals), at - timing.started)


def plain_all_reduce(group: dist.ProcessGroup) -> Plain:
    """What DDP does without a hook, to the bit: scale by the reciprocal, then sum on DDP's own group. Sparse gradients
    come divided: entries of the same place are added up after that."""
    scale = 1.0 / group.size()

    def all_reduce(buffer: Tensor) -> Future[list[Tensor]]:
        if not buffer.is_sparse:
            buffer.mul_(scale)
        return dist.all_reduce(buffer, group=group, async_op=True).get_future()  # type: ignore[no-any-return]

    return all_reduce


def average(group: dist.ProcessGroup) -> Plain:
    """What HSDP does without us, to the bit: the backend's own average."""

    def all_reduce(buffer: Tensor) -> Future[list[Tensor]]:
        work = dist.all_reduce(buffer, dist.ReduceOp.AVG, group=group, async_op=True)
        return work.get_future()  # type: ignore[no-any-return]

    return all_reduce
