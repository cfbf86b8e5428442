"""EventWatcher: an event's time is taken when the device passes it, in a thread that training does not wait for."""

from __future__ import annotations

import threading

from gradwire.clock import MonotonicClock
from gradwire.device.event_watcher import EventWatcher


class SetEvent:
    """An event that the test sets."""

    def __init__(self) -> None:
        self._set = threading.Event()
        self.set = self._set.set

    def query(self) -> bool:
        return self._set.is_set()

    def synchronize(self) -> None:
        raise AssertionError("the watcher only asks")


class BrokenEvent(SetEvent):
    def query(self) -> bool:
        raise RuntimeError("the device failed")


def test_events_are_noted_as_they_are_done_and_not_in_the_order_they_were_watched() -> None:
    watcher, done = EventWatcher(MonotonicClock(), poll=1e-4), list[str]()
    first, second, seen = SetEvent(), SetEvent(), threading.Event()
    watcher.watch(first, lambda now: done.append("first"))
    watcher.watch(second, lambda now: (done.append("second"), seen.set())[0])
    second.set()
    assert seen.wait(10)
    assert not watcher.catch_up(0.001), "the first one is not done"
    first.set()
    assert watcher.catch_up(10)
    assert done == ["second", "first"]
    watcher.close()


def test_a_failed_event_is_logged_and_the_next_one_is_noted_all_the_same() -> None:
    watcher, times = EventWatcher(MonotonicClock(), poll=1e-4), list[float]()
    fine = SetEvent()
    fine.set()
    watcher.watch(BrokenEvent(), times.append)
    watcher.watch(fine, times.append)
    assert watcher.catch_up(10)
    assert len(times) == 1
    watcher.close()


def test_close_ends_the_thread_and_the_wait_for_events_that_are_not_done() -> None:
    watcher = EventWatcher(MonotonicClock(), poll=1e-4)
    before = set(threading.enumerate())
    watcher.watch(SetEvent(), lambda now: None)
    watcher.close()
    assert watcher.catch_up(10)
    assert set(threading.enumerate()) <= before
