"""Ending: a command that holds a network lets it go when it is told to end, or when its terminal is closed."""

from __future__ import annotations

import signal
import sys
from types import FrameType

ENDS = (signal.SIGTERM, signal.SIGHUP)


def leave_cleanly() -> None:
    """From here on these signals unwind the program like an exit; Ctrl-C does that anyway."""
    for number in ENDS:
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup wants to live on
            signal.signal(number, _leave)


def _leave(number: int, frame: FrameType | None) -> None:
    for other in ENDS:
        signal.signal(other, signal.SIG_IGN)  # once is enough; the clean-up must not be cut short
    sys.exit(128 + number)
