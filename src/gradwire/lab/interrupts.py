"""Interrupts: delays SIGINT, SIGTERM and SIGHUP while processes are started, waited for and ended.

A signal handler can raise between any two instructions. Inside a destructor the exception is ignored and the signal is
lost; inside `Popen.poll` a lock stays taken and the next `wait` never returns. Within a block of `Interrupts` a signal
is only noted. Loops check `noted`; when the block ends, the previous handler is called.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Can be nested: inner blocks share the outermost block's signal, and the first block that ends handles it.

    Signals without a Python handler are not changed. Outside of the main thread, where Python handles no signals,
    nothing is noted.
    """

    def __init__(self) -> None:
        self._noted: int | None = None
        self._before: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._outer: Interrupts | None = None

    @property
    def noted(self) -> int | None:
        """The first signal received, until it is handled."""
        return self._noted if self._outer is None else self._outer.noted

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            return self
        for number in STOP_SIGNALS:
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
            # Blocked, so that a signal finds either all previous handlers restored or none.
            blocked = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
            for number, before in self._before.items():
                signal.signal(number, before)
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        if error is None:
            (self._outer or self)._handle()

    def _handle(self) -> None:
        number, self._noted = self._noted, None
        if number is not None:
            self._before[number](number, None)
