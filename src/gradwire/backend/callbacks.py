"""Callbacks: runs the callbacks of a group's futures, in submission order, never on the engine's thread.

A callback may wait for another operation of its group: torch's PowerSGD does. When a callback asks for a future, or
runs for longer than `_TURN`, the next callbacks start beside it on another thread.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

# Seconds until the next callback starts beside a running one: longer than a callback that only computes on a bucket.
_TURN: Final = 0.05
_CLOSE_TIMEOUT: Final = 10.0


class Callbacks:
    """Threads that start with the first callback; another one only where all others are running one."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._changed = threading.Condition()
        self._queue: deque[Callable[[], None]] = deque()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._current: threading.Thread | None = None  # the next callback waits for the one that this thread runs
        self._turn_ends = 0.0  # but not longer than this
        self._closing = False

    def run(self, callback: Callable[[], None]) -> None:
        """Queue it behind those submitted before."""
        with self._changed:
            self._queue.append(callback)
            self._ensure_thread()
            self._changed.notify_all()

    def yield_turn(self) -> None:
        """Called inside a callback that may wait: the next one need not wait for it."""
        if self._current is threading.current_thread():
            with self._changed:
                self._current = None
                self._changed.notify_all()

    def close(self) -> None:
        """Run what is queued, then end the threads."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        deadline = time.monotonic() + _CLOSE_TIMEOUT  # a callback may wait for ever
        while (thread := self._running()) is not None and (left := deadline - time.monotonic()) > 0:
            thread.join(left)

    def _running(self) -> threading.Thread | None:
        """A thread other than this one that has not ended; a queued callback may have started it just now."""
        with self._changed:
            others = (thread for thread in self._threads if thread is not threading.current_thread())
            return next((thread for thread in others if thread.is_alive()), None)

    def _ensure_thread(self) -> None:
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
            self.yield_turn()

    def _next(self) -> Callable[[], None] | None:
        """The next callback, once the one before is done or its turn has ended; None at the end."""
        with self._changed:
            while not self._queue or self._must_wait():
                if self._closing and not self._queue:
                    self._idle -= 1
                    return None
                self._changed.wait(self._turn_ends - time.monotonic() if self._queue else None)
            self._idle -= 1
            callback = self._queue.popleft()
            self._current = threading.current_thread()
            self._turn_ends = time.monotonic() + _TURN
            self._ensure_thread()
            return callback

    def _must_wait(self) -> bool:
        return self._current is not None and time.monotonic() < self._turn_ends
