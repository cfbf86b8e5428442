"""Closing: closes several resources, each of them even if closing another one raises."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Closing:
    """The close functions that still have to run, in order."""

    def __init__(self, *closers: Callable[[], None]) -> None:
        self._open = list(closers)
        # Garbage collection may call close in the thread that is closing: that call must return without effect.
        self._lock, self._closing = threading.RLock(), False

    @property
    def done(self) -> bool:
        """Whether everything is closed."""
        return not self._open

    def close(self) -> None:
        """Close everything; after the last attempt the first error is raised. What raised stays open, and another call
        tries it again. Nothing is closed twice: a second thread waits until the first is done."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
            try:
                self._close_each()
            finally:
                self._closing = False

    def _close_each(self) -> None:
        first: Exception | None = None
        for close in list(self._open):
            try:
                close()
            except Exception as error:
                first = first or error
            else:
                self._open.remove(close)
        if first is not None:
            raise first
