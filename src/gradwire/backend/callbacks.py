"""Callbacks: what hangs on a group's futures runs here, one after another, never on the thread that moves operations.

A callback may wait for another operation of its group: torch's PowerSGD does. One that asks for a future lets the next
callbacks go ahead while it waits; so does one that takes long, for whatever reason. No other ever overtakes an elder.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

# Longer than a callback that only computes on a bucket takes; it may also wait for what nobody here sees.
_PATIENCE: Final = 0.05
_STOP: Final = 10.0


class Callbacks:
    """Threads that start with the first callback; one more only where all others are in the middle of one."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._changed = threading.Condition()
        self._queue: deque[Callable[[], None]] = deque()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._elder: threading.Thread | None = None  # the one whose callback the next have to wait for
        self._patience = 0.0  # until when
        self._closing = False

    def run(self, callback: Callable[[], None]) -> None:
        """Have it run after those that came before."""
        with self._changed:
            self._queue.append(callback)
            self._staff()
            self._changed.notify_all()

    def step_aside(self) -> None:
        """Called inside a callback that may wait: the next need not wait for this one."""
        if self._elder is threading.current_thread():
            with self._changed:
                self._elder = None
                self._changed.notify_all()

    def close(self) -> None:
        """Run what is left, then end the threads."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        deadline = time.monotonic() + _STOP  # a callback may wait for somebody else for ever
        while (thread := self._running()) is not None and (left := deadline - time.monotonic()) > 0:
            thread.join(left)

    def _running(self) -> threading.Thread | None:
        """A thread other than this one that has not ended; what is left in the queue may have started it just now."""
        with self._changed:
            others = (thread for thread in self._threads if thread is not threading.current_thread())
            return next((thread for thread in others if thread.is_alive()), None)

    def _staff(self) -> None:
        if self._queue and not self._idle:
            self._idle += 1
            thread = threading.Thread(target=self._serve, name=f"gradwire-{self._name}-callbacks", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self) -> None:
        while (callback := self._next()) is not None:
            callback()
            with self._changed:
                self._idle += 1
            self.step_aside()

    def _next(self) -> Callable[[], None] | None:
        """The next callback, once its elder is done or has used up our patience; None at the end."""
        with self._changed:
            while not self._queue or self._held():
                if self._closing and not self._queue:
                    self._idle -= 1
                    return None
                self._changed.wait(self._patience - time.monotonic() if self._queue else None)
            self._idle -= 1
            callback = self._queue.popleft()
            self._elder = threading.current_thread()
            self._patience = time.monotonic() + _PATIENCE
            self._staff()
            return callback

    def _held(self) -> bool:
        return self._elder is not None and time.monotonic() < self._patience
