"""Exit wait: delays the process's exit until backend threads have released Python objects.

A backend completes operations in threads that the interpreter does not know of. After the caller was notified, such a
thread takes the interpreter's lock once more, to release a tensor or a callback. If the interpreter has shut down in
between, the process is aborted after all its work is done. Destroying a process group would join its threads, but DDP
keeps the group alive to the end. So a process that is about to exit waits a moment.
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

# Seconds that the exit waits at most. What is still held then belongs to an operation that never ended.
TIMEOUT: Final = 5.0
# Threads take turns at the lock; after this many checks in a row without a running one, none waits for its turn.
_CHECKS: Final = 5
_PAUSE: Final = 0.001
# What torch calls the threads that run gloo's operations.
_WORKER: Final = "pt_gloo_runloop"
_TASKS: Final = Path("/proc/self/task")

_tracked: dict[int, weakref.ref[Any]] = {}
# A forked child has none of these threads: nothing would be released there.
os.register_at_fork(after_in_child=_tracked.clear)


def track(function: F) -> F:
    """The same function, counted until its receiver releases it; the caller must not keep a reference."""
    key = id(function)
    _tracked[key] = weakref.ref(function, lambda _: _tracked.pop(key, None))
    return function


def wait_for_backend_threads(timeout: float = TIMEOUT) -> bool:
    """Wait until no tracked function is held and no backend thread runs; False when the timeout ended first."""
    deadline = time.monotonic() + timeout
    checks = 0
    while checks < _CHECKS and time.monotonic() < deadline:
        checks = 0 if _tracked or _worker_running() else checks + 1
        time.sleep(_PAUSE)  # without the lock
    return checks == _CHECKS


def _worker_running() -> bool:
    """Whether a worker runs or could run; one that waits for its next operation sleeps."""
    for task in _TASKS.glob("*"):
        try:
            name, _, rest = (task / "stat").read_text().partition("(")[2].rpartition(")")
        except OSError:  # the thread ended meanwhile
            continue
        if name.startswith(_WORKER) and rest.split()[0] in "RD":
            return True
    return False


# What is registered first runs last: after every handle has closed its session.
atexit.register(wait_for_backend_threads)
