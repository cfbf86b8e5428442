"""Ending: a command that holds a network lets it go when it is told to end, or when its terminal is closed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import FrameType

from gradwire.lab.interrupts import Interrupts

ENDS = (signal.SIGTERM, signal.SIGHUP)
# A program that was interrupted ends its own lab first, which asks its ranks for up to 9 s and the emulator for 5 s.
PATIENCE = 20.0


def leave_cleanly() -> None:
    """From here on these signals unwind the program like an exit; Ctrl-C does that anyway."""
    for number in ENDS:
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup wants to live on
            signal.signal(number, _leave)


def _leave(number: int, frame: FrameType | None) -> None:
    for other in ENDS:
        signal.signal(other, signal.SIG_IGN)  # once is enough; the clean-up must not be cut short
    sys.exit(128 + number)


def run_to_end(command: Sequence[str]) -> int:
    """Run a program and return its exit code. A signal that ends us is passed on as Ctrl-C, once, and waited for; a
    program that does not end within PATIENCE is killed with every process that it started in its session."""
    with Interrupts() as interrupts:
        # A session of its own: the terminal's Ctrl-C would reach it beside ours.
        process = subprocess.Popen(command, start_new_session=True)
        while interrupts.noted is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(timeout=0.1)
        process.send_signal(signal.SIGINT)
        try:
            return process.wait(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            # Its session's leader is not waited for yet, so that the number is still that of its process group.
            os.killpg(process.pid, signal.SIGKILL)
            return process.wait()
