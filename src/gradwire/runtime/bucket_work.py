"""Joint: the chunks of one bucket on their way; counts them back in, tells what they came to, completes the future."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import Tensor
from torch.futures import Future

from gradwire.clock import Clock
from gradwire.compress.base import Encoded
from gradwire.errors import LinkError
from gradwire.events import Failed, NonFinite, Sink, Synchronised
from gradwire.exchange.buffer_pool import BufferLease, BufferPool
from gradwire.exchange.dense_sum import mean, parts
from gradwire.level import Level
from gradwire.runtime.pipeline import Pipeline
from gradwire.transport.exit_wait import lend
from gradwire.transport.lanes.base import Op
from gradwire.transport.lanes.collectives import explain
from gradwire.types import Bucket

Explain = Callable[[BaseException], BaseException]


def as_it_is(error: BaseException) -> BaseException:
    return error


@dataclass(frozen=True, slots=True)
class EventReporter:
    """Writes down what became of buckets."""

    sink: Sink
    clock: Clock
    # The same error, naming the rank that is gone where that can be found out.
    explained: Explain = as_it_is

    def synchronised(self, bucket: Bucket, level: Level, wire: int, sent: int, seconds: float) -> None:
        now, size = self.clock.now(), bucket.nbytes
        self.sink.emit(Synchronised(now, bucket.step, bucket.index, str(level), size, wire, sent, seconds))

    def failed(self, step: int, error: BaseException) -> BaseException:
        """The error to raise."""
        error = self.explained(error)
        self.sink.emit(Failed(self.clock.now(), step, f"{type(error).__name__}: {error}"))
        return error


def dense_bytes(buffer: Tensor, world_size: int) -> int:
    """Bytes of the dense gradient whose all-reduce sends as much as this one's. Of a sparse one every rank sends its
    indices and values to every other."""
    if not buffer.is_sparse:
        return buffer.nbytes
    return (buffer.indices().nbytes + buffer.values().nbytes) * world_size // 2


class ReplicaCheckWork:
    """One exchange that the training thread waits for."""

    def __init__(self, ops: Iterator[Op]) -> None:
        self.ops = ops
        self._done = threading.Event()
        self._error: BaseException | None = None

    def finished(self, error: BaseException | None) -> None:
        self._error = error
        self._done.set()

    def wait(self) -> None:
        self._done.wait()  # the lane's deadline ends it
        if self._error is not None:
            raise self._error


class PlainWork:
    """One bucket on its way through the backend's own all-reduce.

    The time of completion is noted by the thread that completes the future, which is the backend's. It must hold no
    reference to anything that owns a process group: dropping the last one there would make that thread join itself.
    """

    def __init__(
        self,
        teller: EventReporter,
        done: Future[list[Tensor]],
        bucket: Bucket,
        buffer: Tensor,
        wire: int,
        patience: float | None,
    ) -> None:
        self._teller = teller
        self._bucket = bucket
        self._stamps: list[float] = []
        self._ended = threading.Event()
        self._patience = patience
        self.restored = buffer
        self.wire = wire
        self.started = teller.clock.now()
        self.future: Future[Tensor] = done.then(lend(_stamping(self._stamps, self._ended, teller.clock)))

    @property
    def finished(self) -> float:
        return self._stamps[0]

    def wait(self) -> None:
        """Until the backend has ended it, or patience has; without any, the backend's own timeout holds."""
        if not self._ended.wait(self._patience):
            late = LinkError(explain(RuntimeError(f"no answer for {self._patience:g} s"), "AllReduce"))
            raise self._teller.failed(self._bucket.step, late)
        try:
            self.future.wait()
        except RuntimeError as error:
            failure = LinkError(explain(error, "AllReduce"))
            raise self._teller.failed(self._bucket.step, failure) from error
        self._teller.synchronised(self._bucket, Level(), self.wire, self._bucket.numel, self.finished - self.started)


def _stamping(stamps: list[float], ended: threading.Event, clock: Clock) -> Callable[[Future[list[Tensor]]], Tensor]:
    def stamp(done: Future[list[Tensor]]) -> Tensor:
        stamps.append(clock.now())
        ended.set()
        return done.value()[0]

    return stamp


class BucketWork:
    """`buffer` is DDP's, `work` the float32 values that chunks are views of; often the same."""

    def __init__(
        self, teller: EventReporter, world_size: int, bucket: Bucket, level: Level, buffer: Tensor, work: Tensor
    ) -> None:
        self._teller = teller
        self.world_size = world_size
        self._bucket = bucket
        self._level = level
        self._buffer = buffer
        self._work = work
        self._started = teller.clock.now()
        self._lock = threading.Lock()
        self._left = 0
        self._error: BaseException | None = None
        self._wire = self._sent = self._nonfinite = 0
        self._done: Future[Tensor] = Future()
        self.velocity: Tensor | None = None
        # An exception set on a future becomes a cast error on the way through C++; raised here, its text survives.
        self.future: Future[Tensor] = self._done.then(self._result)

    @property
    def restored(self) -> Tensor:
        return self._buffer

    def expect(self, chunks: int) -> None:
        self._left = chunks
        if chunks == 0:
            self._done.set_result(self._buffer)

    def carried(self, wire: int, sent: int) -> None:
        """What a plan puts on the network for this bucket."""
        self._wire, self._sent = wire, sent

    def counted(self, ops: Iterator[Op], lease: BufferLease) -> Iterator[Op]:
        """The chunk's operations, counted; what it borrowed is given back at the end."""
        for op in ops:
            self._wire += op.wire_bytes(self.world_size)
            yield op
        lease.end()

    def report(self, start: int, encoded: Encoded) -> None:
        self._sent += encoded.sent
        self._nonfinite += encoded.nonfinite
        if self.velocity is not None and encoded.places is not None:
            self.velocity[encoded.places.long() + start] = 0.0  # DGC's momentum factor masking

    def finished(self, error: BaseException | None) -> None:
        with self._lock:
            self._left -= 1
            self._error = self._error or error
            if self._left:
                return
        try:
            if self._error is None and self._work is not self._buffer:
                self._buffer.copy_(self._work)
            self._tell()
        except BaseException as trouble:  # somebody waits: the future must complete, and carries it on
            self._error = self._error or trouble
        self._done.set_result(self._buffer)

    def wait(self) -> None:
        """Every operation below has a deadline, so this ends."""
        self._done.wait()
        if self._error is not None:
            raise self._error

    def _result(self, done: Future[Tensor]) -> Tensor:
        if self._error is not None:
            raise self._error
        return done.value()

    def _tell(self) -> None:
        teller, bucket = self._teller, self._bucket
        now = teller.clock.now()
        if self._error is not None:
            self._error = teller.failed(bucket.step, self._error)
            return
        if self._nonfinite:
            teller.sink.emit(NonFinite(now, bucket.step, bucket.index, self._nonfinite))
        teller.synchronised(bucket, self._level, self._wire, self._sent, now - self._started)


def send_whole(joint: BucketWork, work: Tensor, pipeline: Pipeline, scratch: BufferPool, megabytes: float) -> None:
    """Whole values through the lanes, in chunks of so many megabytes: every element of `work` becomes its mean."""
    chunks = parts(work, joint.world_size, megabytes)
    joint.carried(0, work.numel())  # the operations count the bytes
    joint.expect(len(chunks))
    for chunk in chunks:
        lease = BufferLease(scratch, work.device)
        pipeline.submit(joint.counted(mean(chunk, joint.world_size, lease), lease), joint.finished)
