"""Bucket work: one bucket in flight. Counts its chunks, reports the result, completes DDP's future."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Protocol

from torch import Tensor
from torch.futures import Future

from gradwire.clock import Clock
from gradwire.compress.base import Encoded
from gradwire.errors import LinkError
from gradwire.events import NonFinite
from gradwire.exchange.buffer_pool import BufferLease
from gradwire.level import Level
from gradwire.runtime.event_reporter import EventReporter
from gradwire.runtime.loss_scaling import finite
from gradwire.transport.exit_wait import track
from gradwire.transport.lanes.base import Op
from gradwire.transport.lanes.collectives import explain
from gradwire.types import Bucket

# Start, end and bytes of an all-reduce.
OnFinished = Callable[[float, float, int], None]


class PendingBucket(Protocol):
    """One bucket in flight. `future` is DDP's, `restored` the buffer that gets the mean."""

    future: Future[Tensor]
    restored: Tensor

    def wait(self) -> None:
        """Wait until the mean is there; a failure is raised with its own type."""
        ...

    def finite(self) -> bool:
        """Whether every restored value is finite; after `wait`."""
        ...


class PlainWork:
    """One bucket in the backend's own all-reduce.

    A backend thread completes the future and records the time. What that thread calls must not reference anything that
    owns a process group: dropping the last reference there would make the thread join itself.
    """

    def __init__(
        self,
        reporter: EventReporter,
        done: Future[list[Tensor]],
        bucket: Bucket,
        buffer: Tensor,
        wire_bytes: int,
        timeout: float | None,
        on_finished: OnFinished = lambda started, finished, nbytes: None,
    ) -> None:
        self._reporter = reporter
        self._bucket = bucket
        self._times: list[float] = []
        self._ended = threading.Event()
        self._timeout = timeout
        self._wire_bytes = wire_bytes
        self._on_finished = on_finished
        self._started = reporter.clock.now()
        self.restored = buffer
        self.future: Future[Tensor] = done.then(track(_record_time(self._times, self._ended, reporter.clock)))

    def wait(self) -> None:
        """Wait until the backend has finished; without a timeout here, the backend's own timeout applies."""
        if not self._ended.wait(self._timeout):
            late = LinkError(explain(RuntimeError(f"no answer for {self._timeout:g} s"), "AllReduce"))
            raise self._reporter.failed(self._bucket.step, late)
        try:
            self.future.wait()
        except RuntimeError as error:
            failure = LinkError(explain(error, "AllReduce"))
            raise self._reporter.failed(self._bucket.step, failure) from error
        finished = self._times[0]
        seconds = finished - self._started
        self._reporter.synchronised(self._bucket, Level(), self._wire_bytes, self._bucket.numel, seconds)
        self._on_finished(self._started, finished, self._wire_bytes)

    def finite(self) -> bool:
        return finite(self.restored)


def _record_time(times: list[float], ended: threading.Event, clock: Clock) -> Callable[[Future[list[Tensor]]], Tensor]:
    def record(done: Future[list[Tensor]]) -> Tensor:
        times.append(clock.now())
        ended.set()
        return done.value()[0]

    return record


class BucketWork:
    """One bucket in the lanes or in the trees.

    `buffer` is DDP's. `values` are what chunks are views of, on the CPU or in float32 where the path needs that; often
    the same tensor.
    """

    def __init__(
        self, reporter: EventReporter, world_size: int, bucket: Bucket, level: Level, buffer: Tensor, values: Tensor
    ) -> None:
        self._reporter = reporter
        self._world_size = world_size
        self._bucket = bucket
        self._level = level
        self._values = values
        self._started = reporter.clock.now()
        self._lock = threading.Lock()
        self._chunks_left = 0
        self._error: BaseException | None = None
        self._wire_bytes = self._sent = self._nonfinite = 0
        self._done: Future[Tensor] = Future()
        self.restored = buffer
        self.velocity: Tensor | None = None
        # An exception set on a future becomes a cast error on the way through C++; raised here, its text survives.
        self.future: Future[Tensor] = self._done.then(self._result)

    def expect(self, chunks: int) -> None:
        """Complete the future after this many calls of `finished`."""
        self._chunks_left = chunks
        if chunks == 0:
            self._done.set_result(self.restored)

    def set_traffic(self, wire_bytes: int, sent: int) -> None:
        """Bytes on the network and elements sent, where the path knows them beforehand."""
        self._wire_bytes, self._sent = wire_bytes, sent

    def counted(self, ops: Iterator[Op], lease: BufferLease) -> Iterator[Op]:
        """The chunk's operations, with their bytes counted; ends the lease at the end."""
        for op in ops:
            with self._lock:  # chunks run in several threads
                self._wire_bytes += op.wire_bytes(self._world_size)
            yield op
        lease.end()

    def on_encoded(self, start: int, encoded: Encoded) -> None:
        with self._lock:
            self._sent += encoded.sent
            self._nonfinite += encoded.nonfinite
        if self.velocity is not None and encoded.places is not None:
            self.velocity[encoded.places.long() + start] = 0.0  # DGC's momentum factor masking

    def finished(self, error: BaseException | None) -> None:
        """One chunk has ended; the last one completes the future."""
        with self._lock:
            self._chunks_left -= 1
            self._error = self._error or error
            if self._chunks_left:
                return
        try:
            if self._error is None and self._values is not self.restored:
                self.restored.copy_(self._values)
            self._report()
        except BaseException as failure:  # the training thread waits: the future must complete, and carries the error
            self._error = self._error or failure
        self._done.set_result(self.restored)

    def wait(self) -> None:
        """Wait for the future. Every operation has a deadline, so this ends."""
        self._done.wait()
        if self._error is not None:
            raise self._error

    def finite(self) -> bool:
        return finite(self.restored)

    def _result(self, done: Future[Tensor]) -> Tensor:
        if self._error is not None:
            raise self._error
        return done.value()

    def _report(self) -> None:
        reporter, bucket = self._reporter, self._bucket
        now = reporter.clock.now()
        if self._error is not None:
            self._error = reporter.failed(bucket.step, self._error)
            return
        if self._nonfinite:
            reporter.sink.emit(NonFinite(now, bucket.step, bucket.index, self._nonfinite))
        reporter.synchronised(bucket, self._level, self._wire_bytes, self._sent, now - self._started)
