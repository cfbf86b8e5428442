"""Quiet: the end of a process waits until a backend's threads have let go of what is the interpreter's.

A backend completes operations in threads that the interpreter does not know of. After its caller was told, such a
thread takes the interpreter's lock once more, to let go of a tensor or of a function that was called. Where the
interpreter has ended in between, the process is aborted after all its work is done. Destroying a process group would
join its threads, but DDP keeps the group alive to the end. So a process that is about to end waits a moment.
"""

from __future__ import annotations

import atexit
import os
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

# How long the end waits. What is still held by then belongs to an operation that never ended.
PATIENCE: Final = 5.0
# Threads take turns at the lock; this many looks without one at work, and none waits for its turn.
_LOOKS: Final = 5
_PAUSE: Final = 0.001
# What torch calls the threads that carry out gloo's operations.
_WORKER: Final = "pt_gloo_runloop"
_TASKS: Final = Path("/proc/self/task")

_lent: dict[int, weakref.ref[Any]] = {}
# A forked child has no thread that would let go of anything.
os.register_at_fork(after_in_child=_lent.clear)


def lend(function: F) -> F:
    """The same function, counted until whoever it is handed to lets go of it; nobody else may keep it."""
    key = id(function)
    _lent[key] = weakref.ref(function, lambda _: _lent.pop(key, None))
    return function


def wait_until_quiet(patience: float = PATIENCE) -> bool:
    """Until nothing lent is held and no worker of a backend runs; False when patience ended first."""
    deadline = time.monotonic() + patience
    looks = 0
    while looks < _LOOKS and time.monotonic() < deadline:
        looks = 0 if _lent or _at_work() else looks + 1
        time.sleep(_PAUSE)  # without the lock
    return looks == _LOOKS


def _at_work() -> bool:
    """Whether a worker runs or could; one that waits for its next operation sleeps."""
    for task in _TASKS.glob("*"):
        try:
            name, _, rest = (task / "stat").read_text().partition("(")[2].rpartition(")")
        except OSError:  # it ended while we looked
            continue
        if name.startswith(_WORKER) and rest.split()[0] in "RD":
            return True
    return False


# What is registered first runs last: after every handle has closed its session.
atexit.register(wait_until_quiet)
