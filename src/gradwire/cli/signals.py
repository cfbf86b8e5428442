"""Signals: a command that owns a network removes it on SIGTERM and when its terminal is closed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import FrameType

from gradwire.lab.interrupts import Interrupts

EXIT_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
# Seconds. An interrupted program first ends its own lab, which waits up to 9 s for its ranks and 5 s for the emulator.
EXIT_WAIT = 20.0


def leave_cleanly() -> None:
    """From now on these signals exit the program with clean-up, as Ctrl-C does."""
    for number in EXIT_SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, _leave)


def _leave(number: int, frame: FrameType | None) -> None:
    for other in EXIT_SIGNALS:
        signal.signal(other, signal.SIG_IGN)  # a second signal must not interrupt the clean-up
    sys.exit(128 + number)


def run_to_end(command: Sequence[str]) -> int:
    """Run a program and return its exit code. On a signal, send it SIGINT once and wait; after EXIT_WAIT seconds kill
    it with all processes of its session."""
    with Interrupts() as interrupts:
        process = _start(command)
        while interrupts.noted is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(timeout=0.1)
        process.send_signal(signal.SIGINT)
        try:
            return process.wait(timeout=EXIT_WAIT)
        except subprocess.TimeoutExpired:
            # The session's leader has not been waited for, so its number is still that of the process group.
            os.killpg(process.pid, signal.SIGKILL)
            return process.wait()


def _start(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """In a separate session: otherwise the terminal's Ctrl-C would reach it directly, too. SIGINT ends it, also where
    this process ignores SIGINT, as shells make commands do that they start in the background."""
    ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    if ignored:
        signal.signal(signal.SIGINT, lambda number, frame: None)  # a new program starts without handlers
    try:
        return subprocess.Popen(command, start_new_session=True)
    finally:
        if ignored:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
