"""Device work: the backend's future does not own it, and the wait for the backend has a limit."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch

from gradwire.clock import MonotonicClock
from gradwire.device.event_watcher import EventWatcher
from gradwire.errors import LinkError
from gradwire.events import Event, Failed, Synchronised
from gradwire.runtime.device_work import DeviceAllReduce, DeviceTiming
from gradwire.runtime.event_reporter import EventReporter
from gradwire.types import Bucket
from tests.device.simulated import SimulatedDevice, SimulatedFuture


class EventList(list[Event]):
    def emit(self, event: Event) -> None:
        self.append(event)


class Group:
    """Owned by what is called when the all-reduce ended, as a PlainPath owns its process group."""

    def __init__(self) -> None:
        self.finished = 0

    def on_finished(self, started: float, finished: float, nbytes: int) -> None:
        self.finished += 1


class Started:
    """An all-reduce whose future the backend, here the test, completes."""

    def __init__(self, group: Group, timeout: float | None = None) -> None:
        self.device, self.events = SimulatedDevice(), EventList()
        self.watcher = EventWatcher(MonotonicClock())
        self.done: Any = SimulatedFuture(self.device)
        self.buffer = torch.ones(4)
        bucket = Bucket(index=0, step=7, numel=4, itemsize=4, slices=(), is_last=True)
        timing = DeviceTiming(self.device, self.watcher, self.device.default.record_event(), timeout)
        reporter = EventReporter(self.events, MonotonicClock())
        self.work = DeviceAllReduce(reporter, self.done, timing, bucket, self.buffer, 16, group.on_finished)

    def complete(self) -> None:
        self.device.complete(self.done, [self.buffer], self.device.default)  # type: ignore[arg-type]


def test_a_backends_future_does_not_own_the_process_group() -> None:
    group = Group()
    started, owned = Started(group), weakref.ref(group)
    assert started.watcher.catch_up(10)
    started.watcher.close()
    del group, started.work
    gc.collect()
    assert owned() is None
    started.complete()


def test_the_end_of_an_all_reduce_is_seen_after_its_work_was_released() -> None:
    group = Group()
    started = Started(group)
    started.complete()
    started.work.wait()
    del started.work
    assert started.watcher.catch_up(10)
    started.watcher.close()
    assert group.finished == 1
    assert [type(event) for event in started.events] == [Synchronised]


def test_an_all_reduce_that_the_backend_never_queues_is_a_link_error() -> None:
    started = Started(Group(), timeout=0.01)
    with pytest.raises(LinkError, match=r"no answer for 0\.01 s"):
        started.work.wait()
    assert [type(event) for event in started.events] == [Failed]
    started.watcher.close()
