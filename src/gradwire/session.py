"""The session: the order of the rooms and nothing else.

    bucket -> decide -> (off: plain DDP) | chunk -> encode -> exchange -> decode -> restored bucket

One session serves one model on one rank. `synchronise` is called from the training thread and returns a future at once;
everything that takes time happens in the pipeline's threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.futures import Future

from gradwire.aggregate.chunk import ALIGN, Chunk
from gradwire.aggregate.exchange import exchange
from gradwire.aggregate.factored import factored
from gradwire.aggregate.handing import Estate
from gradwire.aggregate.parcel import Parcel
from gradwire.aggregate.scratch import Lease, Scratch
from gradwire.aggregate.verify import verify
from gradwire.clock import Clock
from gradwire.compress.base import Codec, Stretch, Weights
from gradwire.compress.build import build_codec
from gradwire.compress.feedback import Feedback
from gradwire.compress.lowrank import LowRank
from gradwire.compress.prune import Orders
from gradwire.config import CompressConfig
from gradwire.events import Decided, Sink
from gradwire.flow import Bucket, Decision, ParameterSlice
from gradwire.govern import Governor
from gradwire.joint import Check, Joint, PlainJoint, Teller
from gradwire.level import Level
from gradwire.pipeline import Pipeline
from gradwire.planned import Planned
from gradwire.sense.stopwatch import Stopwatch
from gradwire.trace import span
from gradwire.transport.base import Op

Plain = Callable[[Tensor], Future[list[Tensor]]]
# Elements per bucket from which the residual's energy is judged.
SAMPLE = 4096
DETACHED = Decision(Level(), "gradwire was detached")


@dataclass(frozen=True, slots=True)
class Rooms:
    """What a session is assembled from."""

    governor: Governor
    feedback: Feedback
    pipeline: Pipeline
    plain: Plain
    sink: Sink
    clock: Clock
    stopwatch: Stopwatch
    # Begin, end and bytes of every plain all-reduce.
    on_plain: Callable[[float, float, int], None]
    # What the lanes may lose of frames on their way to owners, and what to release when all lanes are closed.
    tolerance: float = 1.0
    release: Callable[[], None] = lambda: None
    # Trees instead of exchanges, where a plan was asked for.
    planned: Planned | None = None
    # Seconds that an `off` step may wait; None leaves it to the group's own timeout, as plain DDP does.
    patience: float | None = None


class Session:
    """Synchronises the gradient buckets of one model."""

    def __init__(self, rank: int, world_size: int, config: CompressConfig, rooms: Rooms, verify_every: int = 0) -> None:
        self._rank = rank
        self._world_size = world_size
        self._config = config
        self._rooms = rooms
        self._codecs: dict[Level, Codec] = {}
        self._factors: dict[Level, LowRank] = {}
        self._levels: dict[int, Decision] = {}
        self._cuts: dict[int, tuple[int, tuple[ParameterSlice, ...]]] = {}
        self._orders: Orders = {}
        self._teller = Teller(rooms.sink, rooms.clock)
        self._verify_every = verify_every if rooms.pipeline.lanes else 0
        self._scratch = Scratch()
        self._off = False
        self._under_way: list[Joint | PlainJoint] = []
        self.step = 0

    def synchronise(self, bucket: Bucket, buffer: Tensor, weights: Weights) -> Future[Tensor]:
        """Replace the bucket's flat gradient by its mean over all ranks; the future holds the same buffer."""
        with span("hook"):
            return self._synchronise(bucket, buffer, weights)

    def _synchronise(self, bucket: Bucket, buffer: Tensor, weights: Weights) -> Future[Tensor]:
        decision = DETACHED if self._off else self._rooms.governor.decide(bucket)
        if not self._off:
            self._rooms.stopwatch.bucket_ready(self._rooms.clock.now(), bucket.nbytes)
        known = self._levels.get(bucket.index)
        if known is None or known.level != decision.level:
            self._levels[bucket.index] = decision
            now, level = self._rooms.clock.now(), str(decision.level)
            event = Decided(now, bucket.step, bucket.index, level, decision.reason, decision.version)
            self._rooms.sink.emit(event)
        if self._rooms.planned is not None and not self._off:
            return self._by_plan(self._rooms.planned, bucket, buffer, decision.level)
        if decision.level.off:
            return self._plainly(bucket, buffer)
        return self._compressed(bucket, buffer, weights, decision.level)

    def factors(self) -> dict[str, dict[str, Tensor]]:
        """The warm starts of low-rank levels, for a checkpoint."""
        return {str(level): lowrank.state_dict() for level, lowrank in self._factors.items()}

    def load_factors(self, state: dict[str, dict[str, Tensor]]) -> None:
        for text, factors in state.items():
            self._lowrank(Level.parse(text)).load_state_dict(factors)

    def hand_over(self, estate: Estate) -> None:
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
                if isinstance(joint, PlainJoint) and not self._off:
                    self._rooms.on_plain(joint.started, joint.finished, joint.wire)
            if joints and self._verify_every and self.step % self._verify_every == 0:
                self._check([joint.restored for joint in joints])
        except BaseException:
            self._rooms.stopwatch.drop()
            raise

    def _check(self, restored: list[Tensor]) -> None:
        check = Check(verify(restored, self.step))
        self._rooms.pipeline.submit(check.ops, check.finished)
        try:
            check.wait()
        except BaseException as error:
            self._teller.failed(self.step, error)
            raise

    def switch_off(self) -> None:
        """Plain from the next step on; what was done until now is told."""
        if not self._off:
            self._off = True
            self._rooms.governor.finish()

    def close(self) -> None:
        self.switch_off()
        self._verify_every = 0
        if self._rooms.planned is not None:
            self._rooms.planned.close()
        self._rooms.pipeline.close()
        self._rooms.governor.close()
        self._rooms.release()

    def _plainly(self, bucket: Bucket, buffer: Tensor) -> Future[Tensor]:
        """What DDP itself would do; what waited from compressed steps goes along, once."""
        if self._rooms.feedback.pending(bucket):
            self._rooms.feedback.flush(bucket, buffer)
        wire = 2 * buffer.nbytes * (self._world_size - 1) // self._world_size
        plain = PlainJoint(self._teller, self._rooms.plain(buffer), bucket, buffer, wire, self._rooms.patience)
        self._under_way.append(plain)
        return plain.future

    def _by_plan(self, planned: Planned, bucket: Bucket, buffer: Tensor, level: Level) -> Future[Tensor]:
        """Through the trees of the plan in force; `off` sends every bit."""
        work = buffer if buffer.dtype == torch.float32 and buffer.device.type == "cpu" else buffer.float().cpu()
        joint = Joint(self._teller, self._world_size, bucket, level, buffer, work)
        self._under_way.append(joint)
        residual = self._rooms.feedback.worker(bucket, work.device)
        self._sample_energy(residual, work, planned.burden)
        wire, started = planned.footprint(level, bucket).wire_bytes, self._rooms.clock.now()
        joint.expect(1)
        joint.carried(wire, bucket.numel)

        def done(error: BaseException | None) -> None:
            self._rooms.stopwatch.operation(started, self._rooms.clock.now(), wire)
            joint.finished(error)

        planned.submit(Parcel(bucket, level, work, residual, done))
        return joint.future

    def _compressed(self, bucket: Bucket, buffer: Tensor, weights: Weights, level: Level) -> Future[Tensor]:
        """Cut into chunks, send each through the pipeline, complete the future when the last one is restored."""
        work = buffer if buffer.dtype == torch.float32 else buffer.float()
        joint = Joint(self._teller, self._world_size, bucket, level, buffer, work)
        self._under_way.append(joint)
        if level.sparse and self._config.momentum:
            joint.velocity = self._rooms.feedback.velocity(bucket, work, self._config.momentum)
        residual = self._rooms.feedback.worker(bucket, work.device)
        self._sample_energy(residual, work)
        length = self._chunk_length(bucket, level)
        cut = (length, bucket.slices)
        if self._cuts.get(bucket.index) != cut:
            self._rooms.feedback.fold(bucket.index)
            self._scratch.clear()
            for place in list(self._orders):  # other buckets' exchanges may be adding theirs
                if place[0] == bucket.index:
                    del self._orders[place]
            self._cuts[bucket.index] = cut
        starts = range(0, bucket.numel, length)
        joint.expect(len(starts))
        for start in starts:
            end = min(start + length, bucket.numel)
            chunk = Chunk(
                Stretch(bucket.step, bucket.index, start, end - start, weights),
                work[start:end],
                residual[start:end],
                lambda place, numel: self._rooms.feedback.owner(bucket, (place, numel), work.device),
                self._rank,
                self._world_size,
                joint.report,
                Lease(self._scratch, work.device),
                self._config.rounding == "stochastic",
                self._rooms.tolerance,
            )
            ops = joint.counted(self._exchange(bucket, chunk, level), chunk.lease)
            self._rooms.pipeline.submit(ops, joint.finished)
        return joint.future

    def _sample_energy(self, residual: Tensor, gradient: Tensor, burden: float = 1.0) -> None:
        """Energies of a short stretch, another one every step; the whole would cost a pass over memory.

        `burden` is how much more energy what this rank encodes has than its own gradient.
        """
        start = (self.step * 7919 * SAMPLE) % max(1, residual.numel() - SAMPLE)
        waits, fresh = residual[start : start + SAMPLE], gradient[start : start + SAMPLE]
        self._rooms.stopwatch.energies(float(waits.dot(waits)), burden * float(fresh.dot(fresh)))

    def _exchange(self, bucket: Bucket, chunk: Chunk, level: Level) -> Iterator[Op]:
        if level.select == "lowrank":
            lowrank = self._lowrank(level)
            return factored(chunk, lowrank, lowrank.layout(bucket.slices))
        return exchange(chunk, self._codec(level))

    def _codec(self, level: Level) -> Codec:
        if level not in self._codecs:
            self._codecs[level] = build_codec(level, self._config.prune == "zero", self._orders)
        return self._codecs[level]

    def _lowrank(self, level: Level) -> LowRank:
        return self._factors.setdefault(level, LowRank(level))

    def _chunk_length(self, bucket: Bucket, level: Level) -> int:
        """Elements per chunk: pieces of about `chunk` encoded megabytes, whole for low rank."""
        if level.select == "lowrank" or bucket.numel == 0:
            return max(bucket.numel, 1)
        pieces = max(1, round(self._codec(level).size_of(bucket.numel) / (self._config.chunk * 1e6)))
        unit = ALIGN * self._world_size
        return -(-bucket.numel // (pieces * unit)) * unit
