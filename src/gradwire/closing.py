"""Closing: several things to close, each of them even when another cannot be closed."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Closing:
    """What is still open, in the order in which it is to be closed."""

    def __init__(self, *closers: Callable[[], None]) -> None:
        self._open = list(closers)
        # Garbage collection may call close in the thread that is closing: that call must neither wait nor do anything.
        self._lock, self._closing = threading.RLock(), False

    @property
    def done(self) -> bool:
        """Whether everything is closed."""
        return not self._open

    def close(self) -> None:
        """Close all of it; the first error is raised when the last one was tried. What raised counts as open: another
        call tries it again. What is closed is not closed twice: a second thread waits until the first has done."""
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
