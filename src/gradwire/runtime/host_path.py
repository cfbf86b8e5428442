"""HostPath: synchronises buckets of device memory by a path that works in host memory.

1. Training thread: the bucket's event is recorded on the training stream; nothing there waits for the device.
2. Download thread: its stream waits for the event and copies the gradient to host memory. Buckets go on in the order of
   backward, so every rank submits the same ones in the same order.
3. The path's own threads: encode, exchange, decode, as for a bucket of a CPU model. Residuals are in host memory.
4. Upload thread: copies the mean back on its stream, and completes the bucket's future there: whoever waits for the
   future has its stream wait for the copy.

Host memory: the bucket's values, kept from step to step, beside the residuals. Pinned memory: device/pinned_copy.py.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import torch
from torch import Tensor

from gradwire.compress.base import Weights
from gradwire.device.base import Device, DeviceEvent, DeviceStream
from gradwire.device.pinned_copy import SLOT, Download, Upload
from gradwire.errors import LinkError
from gradwire.level import Level
from gradwire.runtime.bucket_work import PendingBucket
from gradwire.runtime.device_work import DeviceWork
from gradwire.runtime.loss_scaling import finite
from gradwire.runtime.path import BucketPath, PathContext
from gradwire.transport.lanes.collectives import explain
from gradwire.types import Bucket

log = logging.getLogger(__name__)

Task = Callable[[], None]


@dataclass(frozen=True, slots=True)
class DeviceBucket:
    """A bucket whose gradient is on a device, from the event `ready` on."""

    bucket: Bucket
    buffer: Tensor
    device: Device
    ready: DeviceEvent


class HostWeights:
    """Weights of device memory, for a path in host memory. The device has passed the bucket's event, so no earlier step
    still changes them; what `zero` does is done before the bucket's mean is."""

    def __init__(self, weights: Weights, stream: DeviceStream) -> None:
        self._weights = weights
        self._stream = stream

    def read(self, start: int, numel: int) -> Tensor:
        found: list[Tensor] = []
        self._stream.launch(lambda: found.append(self._weights.read(start, numel).cpu()))
        self._stream.record_event().synchronize()
        return found[0]

    def zero(self, places: Tensor) -> None:
        self._stream.launch(lambda: self._weights.zero(places))


class HostPath:
    """The threads and copies of one session; made with the first bucket of device memory."""

    def __init__(self, context: PathContext, timeout: float | None = None, slot: int = SLOT) -> None:
        """`timeout` is how many seconds a step may wait for the device."""
        self._context = context
        self._timeout = timeout
        self._slot = slot
        self._values: dict[int, Tensor] = {}
        self._copies: dict[Device, tuple[Download, Upload]] = {}
        self._works: list[DeviceWork] = []
        self._downloads, self._uploads = TaskThread("gradwire-download"), TaskThread("gradwire-upload")

    def find_device(self, buffer: Tensor) -> Device | None:
        return self._context.find_device(buffer)

    def stage(self, bucket: Bucket, buffer: Tensor) -> DeviceBucket | None:
        """The bucket with its event, on the training thread when its gradient is queued; None in host memory."""
        device = self._context.find_device(buffer)
        if device is None:
            return None
        return DeviceBucket(bucket, buffer, device, device.current_stream().record_event())

    def when_ready(self, staged: DeviceBucket | None, then: Callable[[float], None]) -> None:
        """Call `then` with the time when the gradient is computed: now, in host memory."""
        if staged is None:
            then(self._context.reporter.clock.now())
        else:
            self._context.watcher.watch(staged.ready, then)

    def catch_up(self) -> None:
        """Wait until the device has ended the step before: its times belong to that step. The work of the present one
        is queued already, so the device does not run dry. Nothing to wait for in host memory."""
        if not self._context.watcher.catch_up(self._timeout):
            raise LinkError(explain(RuntimeError(f"no answer for {self._timeout:g} s"), "AllReduce"))

    def submit(self, path: BucketPath, staged: DeviceBucket, level: Level, weights: Weights) -> DeviceWork:
        """As `path.submit`, which is called when the gradient is in host memory."""
        work = DeviceWork(staged.device, staged.buffer, self._timeout)
        self._works.append(work)
        self._downloads.put(lambda: self._download(path, staged, level, weights, work))
        return work

    def after_buckets(self, task: Task) -> None:
        """Call `task` when the path has all buckets submitted so far; here and now if there were none. If it fails, so
        do the buckets since the last call."""
        works, self._works = self._works, []

        def run() -> None:
            try:
                task()
            except BaseException as error:
                for work in works:
                    work.fail(error)
                raise

        if self._downloads.started:
            self._downloads.put(run)
        else:
            task()

    def close_downloads(self) -> None:
        """Let buckets in flight reach their path; before the lanes are closed."""
        self._downloads.close()

    def close_uploads(self) -> None:
        """Let what has arrived reach the device; after the lanes were closed."""
        self._uploads.close()
        self._values.clear()

    def _download(
        self, path: BucketPath, staged: DeviceBucket, level: Level, weights: Weights, work: DeviceWork
    ) -> None:
        try:
            download, upload = self._copies_of(staged.device)
            values = self._values_of(staged)
            download.copy(staged.buffer, values, staged.ready)  # 2
            with download.stream.current():  # a loss scale is read behind the gradient, not behind all of backward
                inner = path.submit(staged.bucket, values, level, HostWeights(weights, upload.stream))  # 3
        except BaseException as error:  # the training thread waits for it
            work.fail(error)
            return
        work.exchange = inner.future
        inner.future.add_done_callback(lambda _: self._uploads.put(lambda: self._upload(inner, values, work, upload)))

    def _upload(self, inner: PendingBucket, values: Tensor, work: DeviceWork, to: Upload) -> None:
        try:
            inner.wait()  # it is done: this raises its error
            all_finite = cache(partial(finite, values))
            if self._context.scaling.checks:
                all_finite()  # here, not on the training thread; that looks where only a later bucket sends a residual
            to.copy(values, work.restored)  # 4
            work.complete(to.stream, all_finite=all_finite)
        except BaseException as error:
            work.fail(error)

    def _copies_of(self, device: Device) -> tuple[Download, Upload]:
        if device not in self._copies:
            self._copies[device] = Download(device, self._slot), Upload(device, self._slot)
        return self._copies[device]

    def _values_of(self, staged: DeviceBucket) -> Tensor:
        """Host memory for the bucket, of its type and length."""
        index, buffer = staged.bucket.index, staged.buffer
        known = self._values.get(index)
        if known is None or known.numel() != buffer.numel() or known.dtype != buffer.dtype:
            known = self._values[index] = torch.empty(buffer.numel(), dtype=buffer.dtype)
        return known


class TaskThread:
    """Runs tasks in order on a thread of its own, which starts with the first. Tasks catch their own errors."""

    def __init__(self, name: str) -> None:
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._name = name
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    @property
    def started(self) -> bool:
        return self._thread is not None

    def put(self, task: Task) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._tasks.put(task)

    def close(self, timeout: float = 10.0) -> None:
        """Run what was put so far, then end the thread. After an error, call it again."""
        thread = self._thread
        if thread is None:
            return
        self._tasks.put(None)
        thread.join(timeout)
        if thread.is_alive():
            raise LinkError(f"thread {self._name} still waits for the device after {timeout:g} s; close again later")

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                task()
            except Exception:  # the top of this thread, which every later bucket needs
                log.exception("a task of %s failed", self._name)
