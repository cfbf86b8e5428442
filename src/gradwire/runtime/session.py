"""The session: the order of the rooms and nothing else.

    bucket -> decide -> (off: plain DDP) | chunk -> encode -> exchange -> decode -> restored bucket

One session serves one model on one rank. `synchronise` is called from the training thread and returns a future at once;
everything that takes time happens in the pipeline's threads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.futures import Future

from gradwire.clock import Clock
from gradwire.closing import Closing
from gradwire.compress.base import ChunkSpan, Weights
from gradwire.compress.codec_cache import CodecCache
from gradwire.compress.energy import energies
from gradwire.compress.error_feedback import ErrorFeedback
from gradwire.config import CompressConfig
from gradwire.events import Decided, Sink
from gradwire.exchange.buffer_pool import BufferLease, BufferPool
from gradwire.exchange.chunk import Chunk
from gradwire.exchange.chunk_layout import ChunkLayout, chunk_layout
from gradwire.exchange.select import exchange_at
from gradwire.exchange.verify import digest_of, verify
from gradwire.level import Level
from gradwire.runtime.bucket_work import (
    BucketWork,
    EventReporter,
    Explain,
    PlainWork,
    ReplicaCheckWork,
    as_it_is,
    dense_bytes,
    send_whole,
)
from gradwire.runtime.governor import Governor
from gradwire.runtime.loss_scaling import LossScaling
from gradwire.runtime.pipeline import Pipeline
from gradwire.runtime.profiling import span
from gradwire.sense.step_timer import StepTimer
from gradwire.sites.reducer import TreeReducer
from gradwire.tree.request import BucketRequest
from gradwire.tree.state_transfer import TransferableState
from gradwire.types import Bucket, Decision, all_reduce_bytes

Plain = Callable[[Tensor], Future[list[Tensor]]]
DETACHED = Decision(Level(), "gradwire was detached")
SPARSE = Decision(Level(), "a sparse gradient is reduced as plain DDP does, by the model's process group")


@dataclass(frozen=True, slots=True)
class SessionParts:
    """What a session is assembled from."""

    governor: Governor
    feedback: ErrorFeedback
    pipeline: Pipeline
    plain: Plain
    sink: Sink
    clock: Clock
    stopwatch: StepTimer
    # Begin, end and bytes of every plain all-reduce.
    on_plain: Callable[[float, float, int], None]
    # What the lanes may lose of frames on their way to owners, and what to release when all lanes are closed.
    tolerance: float = 1.0
    release: Callable[[], None] = lambda: None
    # Trees instead of exchanges, where a plan was asked for.
    planned: TreeReducer | None = None
    # Seconds that an `off` step may wait; None leaves it to the group's own timeout, as plain DDP does.
    patience: float | None = None
    # Names the rank that is gone in an error that does not.
    explained: Explain = as_it_is
    # Whether the lanes run on a wire of our own: then `off` travels over it too, and not over the process group.
    own_wire: bool = False
    # Compares replicas where ranks come and go: the step, and a digest of what it restored.
    compare: Callable[[int, int], None] | None = None


class Session:
    """Synchronises the gradient buckets of one model."""

    def __init__(
        self, rank: int, world_size: int, config: CompressConfig, rooms: SessionParts, verify_every: int = 0
    ) -> None:
        self._rank = rank
        self._world_size = world_size
        self._config = config
        self._rooms = rooms
        self.codecs = CodecCache(config.prune == "zero")
        self._levels: dict[int, Decision] = {}
        self._cuts: dict[int, ChunkLayout] = {}
        self._teller = EventReporter(rooms.sink, rooms.clock, rooms.explained)
        self._verify_every = verify_every if rooms.pipeline.lanes or rooms.compare else 0
        self._scratch = BufferPool()
        self._off = False
        # To be called when more waits than the last step left.
        self.resend = rooms.planned.resend if rooms.planned is not None else lambda: None
        planned = [rooms.planned.close] if rooms.planned is not None else []
        self._open = Closing(*planned, rooms.pipeline.close, rooms.governor.close, rooms.release)
        self._under_way: list[BucketWork | PlainWork] = []
        self.scaling = LossScaling(rooms.feedback, self.codecs, self.resend)
        self.step = self._latest = 0

    def synchronise(self, bucket: Bucket, buffer: Tensor, weights: Weights) -> Future[Tensor]:
        """Replace the bucket's flat gradient by its mean over all ranks; the future holds the same buffer."""
        with span("hook"):
            return self._synchronise(bucket, buffer, weights)

    def _synchronise(self, bucket: Bucket, buffer: Tensor, weights: Weights) -> Future[Tensor]:
        self._latest = bucket.step
        decision = DETACHED if self._off else self._rooms.governor.decide(bucket)
        if buffer.is_sparse:
            decision = SPARSE
        if not self._off:
            self._rooms.stopwatch.bucket_ready(self._rooms.clock.now(), bucket.nbytes)
        known = self._levels.get(bucket.index)
        if known is None or known.level != decision.level:
            self._levels[bucket.index] = decision
            now, level = self._rooms.clock.now(), str(decision.level)
            event = Decided(now, bucket.step, bucket.index, level, decision.reason, decision.version)
            self._rooms.sink.emit(event)
        if self._rooms.planned is not None and not self._off and not buffer.is_sparse:
            return self._by_plan(self._rooms.planned, bucket, buffer, decision.level)
        if decision.level.off:
            return self._plainly(bucket, buffer)
        return self._compressed(bucket, buffer, weights, decision.level)

    def hand_over(self, estate: TransferableState) -> None:
        """Where members may leave and come back, this is what one that comes back is handed."""
        if self._rooms.planned is not None:
            self._rooms.planned.hand_over(estate)

    def settle(self) -> None:
        """Wait until every bucket of this backward is restored; raise what went wrong as the error it was."""
        joints, self._under_way = self._under_way, []
        try:
            for joint in joints:
                with span("settle"):
                    joint.wait()
                if isinstance(joint, PlainWork) and not self._off:
                    self._rooms.on_plain(joint.started, joint.finished, joint.wire)
            over, self._latest = self.step > self._latest, self.step
            self.scaling.settle((joint.restored for joint in joints), over)
            if joints and self._verify_every and self.step % self._verify_every == 0:
                self._check([joint.restored for joint in joints])
        except BaseException:
            self._rooms.stopwatch.drop()
            raise

    def _check(self, restored: list[Tensor]) -> None:
        check = ReplicaCheckWork(verify(restored, self.step))
        try:
            if self._rooms.compare is not None:
                self._rooms.compare(self.step, digest_of(restored))
            else:
                self._rooms.pipeline.submit(check.ops, check.finished)
                check.wait()
        except BaseException as error:
            failure = self._teller.failed(self.step, error)
            raise failure from failure.__cause__

    def switch_off(self) -> None:
        """Plain from the next step on; what was done until now is told."""
        if not self._off:
            self._off = True
            self._rooms.governor.finish()

    def close(self) -> None:
        """Closes everything, also where a part of it raises; then the first error is raised, and a second call tries
        again what is still open."""
        try:
            self.switch_off()
        finally:
            self._verify_every = 0
            self._open.close()

    def _plainly(self, bucket: Bucket, buffer: Tensor) -> Future[Tensor]:
        """What DDP itself would do; what waited from compressed steps goes along, once."""
        if buffer.is_sparse:
            buffer = buffer.div_(self._world_size).coalesce()
            if self._rooms.planned is not None and bucket.is_last and not self._off:
                # The trees' step ends with a bucket that they carry: one element, in the place of this one.
                self._by_plan(self._rooms.planned, replace(bucket, numel=1), torch.zeros(1), Level())
        elif self._rooms.feedback.pending(bucket):
            self.scaling.begin(bucket.step)
            self.scaling.flushed(self._rooms.feedback.flush(bucket, buffer))
        if self._rooms.own_wire and not self._off and not buffer.is_sparse:
            return self._over_lanes(bucket, buffer)
        nbytes = dense_bytes(buffer, self._world_size)
        wire = all_reduce_bytes(nbytes, self._world_size)
        sized = replace(bucket, numel=nbytes // bucket.itemsize)
        plain = PlainWork(self._teller, self._rooms.plain(buffer), sized, buffer, wire, self._rooms.patience)
        self._under_way.append(plain)
        return plain.future

    def _over_lanes(self, bucket: Bucket, buffer: Tensor) -> Future[Tensor]:
        """Whole values over our own wire: the same mean as plain DDP's, summed in rank order."""
        work = buffer if buffer.device.type == "cpu" else buffer.cpu()
        joint = BucketWork(self._teller, self._world_size, bucket, Level(), buffer, work)
        self._under_way.append(joint)
        send_whole(joint, work, self._rooms.pipeline, self._scratch, self._config.chunk)
        return joint.future

    def _by_plan(self, planned: TreeReducer, bucket: Bucket, buffer: Tensor, level: Level) -> Future[Tensor]:
        """Through the trees of the plan in force; `off` sends every bit."""
        work = buffer if buffer.dtype == torch.float32 and buffer.device.type == "cpu" else buffer.float().cpu()
        joint = BucketWork(self._teller, self._world_size, bucket, level, buffer, work)
        self._under_way.append(joint)
        residual = self._rooms.feedback.worker(bucket, work.device)
        self.scaling.save(bucket)
        self._rooms.stopwatch.energies(*energies(self.step, residual, work, planned.burden))
        wire, started = planned.footprint(level, bucket).wire_bytes, self._rooms.clock.now()
        joint.expect(1)
        joint.carried(wire, bucket.numel)

        def done(error: BaseException | None) -> None:
            self._rooms.stopwatch.operation(started, self._rooms.clock.now(), wire)
            joint.finished(error)

        planned.submit(BucketRequest(bucket, level, work, residual, done))
        return joint.future

    def _compressed(self, bucket: Bucket, buffer: Tensor, weights: Weights, level: Level) -> Future[Tensor]:
        """Cut into chunks, send each through the pipeline, complete the future when the last one is restored."""
        work = buffer if buffer.dtype == torch.float32 else buffer.float()
        joint = BucketWork(self._teller, self._world_size, bucket, level, buffer, work)
        self._under_way.append(joint)
        residual = self._rooms.feedback.worker(bucket, work.device)
        chunks = self._cut(bucket, level).chunks(bucket.numel)
        self.scaling.save(bucket)
        if level.sparse and self._config.momentum:
            joint.velocity = self._rooms.feedback.velocity(bucket, work, self._config.momentum)
        self._rooms.stopwatch.energies(*energies(self.step, residual, work))
        joint.expect(len(chunks))
        for start, end in chunks:
            chunk = Chunk(
                ChunkSpan(bucket.step, bucket.index, start, end - start, weights),
                work[start:end],
                residual[start:end],
                lambda place, numel: self._rooms.feedback.owner(bucket, (place, numel), work.device),
                self._rank,
                self._world_size,
                joint.report,
                BufferLease(self._scratch, work.device),
                self._config.rounding == "stochastic",
                self._rooms.tolerance,
            )
            ops = joint.counted(exchange_at(level, chunk, bucket.slices, self.codecs), chunk.lease)
            self._rooms.pipeline.submit(ops, joint.finished)
        return joint.future

    def _cut(self, bucket: Bucket, level: Level) -> ChunkLayout:
        """The bucket's chunks at this level; forgets what only holds for the ones before."""
        codec = None if level.select == "lowrank" else self.codecs.codec(level)
        now = chunk_layout(bucket, codec, self._world_size, self._config.chunk)
        if self._cuts.get(bucket.index) != now:
            self._rooms.feedback.fold(bucket.index)
            self._scratch.clear()
            self.codecs.forget(bucket.index)
            self._cuts[bucket.index] = now
        return now
