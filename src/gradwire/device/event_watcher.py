"""Event watcher: notes when events of a device are done, from a thread of its own.

The future of an NCCL collective is done when the collective is queued, and the host runs ahead of the device: only
events tell when a gradient was ready and when an all-reduce ended.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from gradwire.clock import Clock
from gradwire.device.base import DeviceEvent

log = logging.getLogger(__name__)

# Seconds between two looks at the events: short against an all-reduce on the networks that gradwire is for, and some
# microseconds of Python each. Chosen, not measured.
POLL: Final = 0.0005

Then = Callable[[float], None]


class EventWatcher:
    """The thread starts with the first event and ends with `close`."""

    def __init__(self, clock: Clock, poll: float = POLL) -> None:
        self._clock = clock
        self._poll = poll
        self._changed = threading.Condition()
        self._watched: list[tuple[DeviceEvent, Then]] = []
        self._thread: threading.Thread | None = None
        self._closed = False

    def watch(self, event: DeviceEvent, then: Then) -> None:
        """Call `then` with the time when the event is done, on the watcher's thread."""
        with self._changed:
            if self._closed:
                return
            self._watched.append((event, then))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="gradwire-events", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def catch_up(self, timeout: float | None = None) -> bool:
        """Wait until all events watched so far are done; False if that takes longer than `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._watched or self._closed, timeout)

    def close(self) -> None:
        """End the thread; events that are not done are forgotten."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._watched or self._closed)
                if self._closed:
                    return
                watched = list(self._watched)
            done = [pair for pair in watched if _look(*pair, self._clock)]
            with self._changed:
                self._watched = [pair for pair in self._watched if not any(pair is one for one in done)]
                self._changed.notify_all()
                if self._watched:
                    self._changed.wait_for(lambda: self._closed, self._poll)


def _look(event: DeviceEvent, then: Then, clock: Clock) -> bool:
    """Whether the event is done with; a failed device is reported by the training thread's own calls."""
    try:
        if not event.query():
            return False
        then(clock.now())
    except Exception:  # the top of this thread
        log.exception("an event of the device cannot be read, or what follows it failed")
    return True
