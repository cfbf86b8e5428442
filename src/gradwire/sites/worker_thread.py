"""WorkerThread: runs functions one after another on a daemon thread and returns a future for each.

Unlike those of `concurrent.futures`, its thread never delays the end of the process: it may wait for a dead rank.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class WorkerThread:
    """Functions start in submission order. Safe to use from several threads."""

    def __init__(self, name: str) -> None:
        self._tasks: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._stopped: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, function: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        with self._lock:
            error = self._stopped
            if error is None:
                self._tasks.put((future, function))
        if error is not None:
            future.set_exception(error)
        return future

    def stop(self, error: Exception) -> None:
        """Run what was submitted before, then end the thread. What is submitted later fails with `error`."""
        with self._lock:
            if self._stopped is None:
                self._stopped = error
                self._tasks.put(None)

    def join(self, timeout: float) -> bool:
        """Whether the thread ended in time."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            future, function = task
            try:
                result = function()
            except BaseException as error:  # the top of this thread: it fails the future
                future.set_exception(error)
            else:
                future.set_result(result)


def finished() -> Future[None]:
    """A future that is done already."""
    future: Future[None] = Future()
    future.set_result(None)
    return future


def complete(future: Future[None], error: BaseException | None) -> None:
    """Complete a future by the outcome of an operation."""
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
