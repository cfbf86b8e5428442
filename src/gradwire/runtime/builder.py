"""Builder: configuration in, a session out.

This module, `connections` and `open_governor` are the only places where concrete classes are chosen.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

from gradwire.clock import Clock, MonotonicClock
from gradwire.closing import Closing
from gradwire.compress.codec_cache import CodecCache
from gradwire.compress.error_feedback import ErrorFeedback
from gradwire.compress.gradient_sample import GradientSampler
from gradwire.config import Config
from gradwire.decide.registry import is_controller
from gradwire.device.event_watcher import EventWatcher
from gradwire.errors import GradwireError
from gradwire.events import Failed
from gradwire.observe.event_bus import EventBus, attached
from gradwire.observe.recorder import Recorder, RecorderConfig
from gradwire.runtime.compressed_path import CompressedPath
from gradwire.runtime.connections import BuildContext, Connections, connect, quietly
from gradwire.runtime.device_path import DevicePath
from gradwire.runtime.event_reporter import EventReporter
from gradwire.runtime.governor import Governor
from gradwire.runtime.host_path import HostPath
from gradwire.runtime.job_ranks import JobRanks
from gradwire.runtime.loss_scaling import LossScaling
from gradwire.runtime.open_governor import governor_context, open_governor
from gradwire.runtime.path import PathContext
from gradwire.runtime.plain_path import AllReduceMean, PlainPath, ddp_all_reduce
from gradwire.runtime.rank_agreement import (
    CheckFacts,
    all_ranks,
    check_job_facts,
    fact_checker,
    open_lost_rank_finder,
    replica_check,
)
from gradwire.runtime.replica_verifier import ReplicaVerifier
from gradwire.runtime.session import Session, SessionParts
from gradwire.runtime.tree_path import TreePath
from gradwire.sense.step_timer import StepTimer
from gradwire.sites.job_record import facts_of
from gradwire.sites.reducer import TreeReducer
from gradwire.transport.bootstrap.replica_check import ReplicaCheck
from gradwire.transport.lost_rank import LostRankFinder


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltSession:
    """A session and the parts its handle uses."""

    session: Session
    feedback: ErrorFeedback
    codecs: CodecCache
    governor: Governor
    timer: StepTimer
    event_bus: EventBus
    check_facts: CheckFacts
    # Sends buckets through a plan's trees, where one is configured.
    reducer: TreeReducer | None
    # Samples the gradient for a controller, on rank 0.
    sampler: GradientSampler | None
    # Compares replicas through torch's store, where ranks may fail and rejoin.
    replica_check: ReplicaCheck | None

    def resend(self) -> None:
        """Call this when residuals changed between steps."""
        if self.reducer is not None:
            self.reducer.resend_residuals()


def build(
    config: Config,
    group: dist.ProcessGroup,
    parameters: int,
    all_reduce: AllReduceMean | None = None,
    *,
    on_cpu: bool,
    job_ranks: JobRanks | None = None,
) -> BuiltSession:
    """Build a session over an existing process group. Every member of the group calls this at the same point.

    `all_reduce` is what `off` does: DDP's all-reduce, unless the integration's framework does it another way. `on_cpu`:
    gradients are in host memory. `job_ranks`: where the job has more ranks than `group`; all of them call this at the
    same point.
    """
    check_facts = fact_checker(config, group)
    if job_ranks is None:
        check_facts(facts_of(config))
    else:
        check_job_facts(config, job_ranks, facts_of(config))
    rank, world_size, clock = dist.get_rank(group), group.size(), MonotonicClock()
    place = (rank, world_size) if job_ranks is None else (job_ranks.rank, job_ranks.size)
    bus = open_event_bus(config, *place, clock)
    context = BuildContext(
        config=config,
        group=group,
        parameters=parameters,
        clock=clock,
        event_bus=bus,
        lost_ranks=LostRankFinder(),
        timer=StepTimer(),
        feedback=ErrorFeedback(rank, world_size, config.compress.residual_type),
        check_facts=check_facts,
        all_reduce=all_reduce or ddp_all_reduce(group),
        # Only DDP's buckets are sampled; for other integrations the prices of sparse levels stay the cautious ones.
        sampler=GradientSampler(parameters)
        if rank == 0 and all_reduce is None and is_controller(config.level)
        else None,
        on_cpu=on_cpu,
        job_ranks=job_ranks,
    )
    bus.emit(attached(clock.now(), place, parameters, config.to_dict()))
    with ExitStack() as opened:
        opened.callback(quietly, lambda: bus.close(0))
        try:
            built = _build(context, opened)
            open_lost_rank_finder(context.lost_ranks, config, group, bus, job_ranks)
            built.session.scaling.all_found = all_ranks(config, group, context.lost_ranks, job_ranks)
        except GradwireError as error:
            bus.emit(Failed(clock.now(), 0, f"{type(error).__name__}: {error}"))
            raise
        opened.pop_all()
    return built


def open_event_bus(config: Config, rank: int, world_size: int, clock: Clock) -> EventBus:
    """With a recorder where a directory is configured."""
    if not config.record:
        return EventBus(clock)
    recording = RecorderConfig(Path(config.record), rank, world_size, config.observe.detail == "buckets")
    return EventBus(clock, Recorder(recording, clock))


def _build(context: BuildContext, opened: ExitStack) -> BuiltSession:
    """Build what waits for other ranks; `opened` closes what is open if one of them is missing."""
    connections = connect(context, opened)
    governing = governor_context(context, connections)
    governor = open_governor(context, connections, governing)
    opened.callback(quietly, governor.close)
    check = replica_check(context.config, context.group, context.event_bus, context.clock)
    if check is not None:
        opened.callback(check.close)
    codecs = CodecCache(context.config.compress.prune == "zero")
    session = _session(context, connections, governor, codecs, check)
    if context.world_size > 1:
        opened.callback(governing.traffic.stop)
        governing.traffic.start()
    return BuiltSession(
        session=session,
        feedback=context.feedback,
        codecs=codecs,
        governor=governor,
        timer=context.timer,
        event_bus=context.event_bus,
        check_facts=context.check_facts,
        reducer=connections.reducer,
        sampler=context.sampler,
        replica_check=check,
    )


def _session(
    context: BuildContext,
    connections: Connections,
    governor: Governor,
    codecs: CodecCache,
    check: ReplicaCheck | None,
) -> Session:
    reducer, transports = connections.reducer, connections.transports
    paths = _path_context(context, connections, codecs)
    compare = check.compare if check is not None else None
    every = context.config.observe.verify if transports.current.pipeline.lanes or compare is not None else 0
    trees = [reducer.close] if reducer is not None else []
    checks = [check.close] if check is not None else []
    release = Closing(context.lost_ranks.close, *checks, transports.release)
    host = HostPath(paths, timeout=_timeout(context.config))
    compressed = CompressedPath(paths)
    parts = SessionParts(
        governor=governor,
        adaptive=is_controller(context.config.level),
        sampler=context.sampler,
        plain=_plain_path(context, connections, paths),
        compressed=compressed,
        tree=TreePath(paths),
        host=host,
        device=DevicePath(paths, compressed) if context.config.compress.encode == "gpu" else None,
        scaling=paths.scaling,
        reporter=paths.reporter,
        timer=context.timer,
        verifier=ReplicaVerifier(every, paths.reporter, transports, compare) if every else None,
        closers=(
            host.close_downloads,
            *trees,
            transports.close_lanes,
            host.close_uploads,
            paths.watcher.close,
            context.feedback.settle_last,
            governor.close,
            release.close,
        ),
    )
    return Session(parts)


def _path_context(context: BuildContext, connections: Connections, codecs: CodecCache) -> PathContext:
    reducer = connections.reducer
    resend = reducer.resend_residuals if reducer is not None else lambda: None
    return PathContext(
        rank=context.rank,
        world_size=context.world_size,
        compress=context.config.compress,
        feedback=context.feedback,
        codecs=codecs,
        scaling=LossScaling(context.feedback, codecs, resend),
        transports=connections.transports,
        reporter=EventReporter(context.event_bus, context.clock, context.lost_ranks.explained),
        timer=context.timer,
        watcher=EventWatcher(context.clock),
    )


def _plain_path(context: BuildContext, connections: Connections, paths: PathContext) -> PlainPath:
    return PlainPath(paths, context.all_reduce, connections.meter.on_plain, timeout=_timeout(context.config))


def _timeout(config: Config) -> float | None:
    """A job without a controller waits as long as DDP does: until the group's own timeout. With local steps a rank may
    be late by a whole round."""
    return config.transport.timeout if is_controller(config.level) or config.local_steps else None
