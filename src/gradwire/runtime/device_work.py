"""Device work: one bucket in device memory, in flight. Completes DDP's future in the order of streams.

DeviceWork         its values are exchanged in host memory (host_path.py)
DeviceAllReduce    the backend reduces it where it is (NCCL)
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor
from torch.futures import Future

from gradwire.device.base import Device, DeviceEvent, DeviceStream
from gradwire.device.event_watcher import EventWatcher
from gradwire.errors import LinkError
from gradwire.level import Level
from gradwire.runtime.bucket_work import OnFinished
from gradwire.runtime.event_reporter import EventReporter
from gradwire.runtime.loss_scaling import finite
from gradwire.transport.exit_wait import track
from gradwire.transport.lanes.collectives import explain
from gradwire.types import Bucket


class DeviceWork:
    """`buffer` is DDP's. Other threads complete it, once.

    The training thread waits for an event of the host: where the device itself has failed, no future of it completes.
    """

    def __init__(self, device: Device, buffer: Tensor, timeout: float | None = None) -> None:
        """`timeout` is how many seconds `wait` waits for the device; an exchange has deadlines of its own."""
        self._device = device
        self._timeout = timeout
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self._all_finite: Callable[[], bool] = lambda: True
        self._done = device.future()
        self.restored = buffer
        # Of the bucket in host memory, once it is there.
        self.exchange: Future[Tensor] | None = None
        # As in BucketWork: an exception set on a future loses its type; raised here, its text survives.
        self.future: Future[Tensor] = self._done.then(self._result)

    def complete(self, stream: DeviceStream, all_finite: Callable[[], bool] = lambda: True) -> None:
        """The buffer has the mean when the stream has done what was launched on it so far. `all_finite` is called when
        the step has settled, if at all."""
        self._all_finite = all_finite
        self._end(lambda: stream)

    def fail(self, error: BaseException) -> None:
        """`wait` raises this error."""
        self._error = error
        self._end(self._device.current_stream)

    def wait(self) -> None:
        """Wait until the copy to the device is launched; the current stream then waits for it, the host does not."""
        while not self._ended.wait(self._timeout):
            if self.exchange is None or self.exchange.done():
                raise LinkError(f"the device did not copy a bucket within {self._timeout:g} s")
        if self._error is not None:
            raise self._error
        self._done.wait()

    def finite(self) -> bool:
        """Whether every restored value is finite, as found in host memory."""
        return self._all_finite()

    def _end(self, stream: Callable[[], DeviceStream]) -> None:
        try:
            self._device.complete(self._done, self.restored, stream())
        except BaseException as error:  # the device failed; whoever waits gets the first error
            self._error = self._error or error
        finally:
            self._ended.set()

    def _result(self, done: Future[Tensor]) -> Tensor:
        if self._error is not None:
            raise self._error
        return done.value()


@dataclass(frozen=True, slots=True)
class DeviceTiming:
    """How to time an operation on a device: it can begin after `ready`, when the gradient is computed. `timeout` is how
    many seconds a step may wait until the backend has queued it; None leaves that to the backend."""

    device: Device
    watcher: EventWatcher
    ready: DeviceEvent
    timeout: float | None = None


class DeviceAllReduce:
    """One bucket in an all-reduce on the device. `done` is complete when the all-reduce is queued; an event behind it
    says when it ended.

    As in PlainWork, what a backend thread calls must not own a process group, which this work does by `on_finished`.
    """

    def __init__(
        self,
        reporter: EventReporter,
        done: Future[list[Tensor]],
        timing: DeviceTiming,
        bucket: Bucket,
        buffer: Tensor,
        wire_bytes: int,
        on_finished: OnFinished,
    ) -> None:
        self._reporter = reporter
        self._bucket = bucket
        self._timing = timing
        self._wire_bytes = wire_bytes
        self._queued = threading.Event()
        self._on_finished = on_finished
        self._started = reporter.clock.now()
        self.restored = buffer
        timing.watcher.watch(timing.ready, self._ready)  # first: the end may be seen at the same look
        self.future: Future[Tensor] = done.then(track(_watch_end(weakref.ref(self), self._queued)))

    def wait(self) -> None:
        """The current stream waits for the all-reduce, the host does not; without a timeout here, the backend's own
        applies."""
        if not self._queued.wait(self._timing.timeout):
            late = LinkError(explain(RuntimeError(f"no answer for {self._timing.timeout:g} s"), "AllReduce"))
            raise self._reporter.failed(self._bucket.step, late)
        try:
            self.future.wait()
        except RuntimeError as error:
            failure = LinkError(explain(error, "AllReduce"))
            raise self._reporter.failed(self._bucket.step, failure) from error

    def finite(self) -> bool:
        """Waits for the device: called only for a step that sends whole residuals."""
        return finite(self.restored)

    def _ready(self, now: float) -> None:
        """The gradient is ready on the device: only now can the all-reduce begin."""
        self._started = now

    def watch_end(self) -> None:
        """Called with a current stream that waits for the all-reduce."""
        self._timing.watcher.watch(self._timing.device.current_stream().record_event(), self._ended)

    def _ended(self, now: float) -> None:
        self._reporter.synchronised(self._bucket, Level(), self._wire_bytes, self._bucket.numel, now - self._started)
        self._on_finished(self._started, now, self._wire_bytes)


def _watch_end(work: weakref.ref[DeviceAllReduce], queued: threading.Event) -> Callable[[Future[list[Tensor]]], Tensor]:
    """For torch, which calls it with a current stream that waits for the all-reduce."""

    def watch(done: Future[list[Tensor]]) -> Tensor:
        try:
            result = done.value()[0]
            if (known := work()) is not None:
                known.watch_end()
            return result
        finally:
            queued.set()

    return watch
