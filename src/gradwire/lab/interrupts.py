"""Ctrl-C, SIGTERM and a closed terminal, noted while processes are started, waited for and ended.

A handler that raises does so between any two instructions. Inside a destructor the exception is swallowed and the
signal is lost; inside `Popen.poll` it leaves a lock taken, and the next `wait` never returns. Within a block of
`Interrupts` a signal is only noted. Loops look at `noted`; when the block ends, the handler from before is called, at
that one point.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """May be nested: inner blocks share what the outermost notes, and the first block to end acts on it.

    Signals that are ignored or end the process at once stay as they are. Outside of the main thread, where Python
    handles no signals, nothing is ever noted.
    """

    def __init__(self) -> None:
        self._noted: int | None = None
        self._before: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._outer: Interrupts | None = None

    @property
    def noted(self) -> int | None:
        """The first signal that came, until it has been acted on."""
        return self._noted if self._outer is None else self._outer.noted

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            return self
        for number in ENDING:
            before = signal.getsignal(number)
            if isinstance(owner := getattr(before, "__self__", None), Interrupts):
                self._outer = owner
                return self
            if callable(before):
                self._before[number] = before
        for handled in self._before:
            signal.signal(handled, self._note)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._noted is None:
            self._noted = number

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._outer is None:
            # Blocked, so that a signal which comes now meets all handlers as they were, or none.
            blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
            for number, before in self._before.items():
                signal.signal(number, before)
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        if error is None:
            (self._outer or self)._act()

    def _act(self) -> None:
        number, self._noted = self._noted, None
        if number is not None:
            self._before[number](number, None)
