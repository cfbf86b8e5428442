"""Fork: disables, in a forked child process, objects whose connections, threads and files belong to the parent.

In: an object and the function that disables it. Out: that call, in every child forked while the object lives. A child
(a DataLoader worker) has copies of the objects without their threads, and shares their sockets and files. Closing them
there would close the parent's connections, write its events twice, or wait for threads that do not exist. The functions
run before any other code of the child; they must not lock, wait or raise.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")

_VOIDS: WeakKeyDictionary[object, Callable[[object], None]] = WeakKeyDictionary()


def void_in_child(owner: T, void: Callable[[T], None]) -> None:
    """Call `void(owner)` in every process that is forked from this one while the owner lives."""
    _VOIDS[owner] = void  # type: ignore[assignment]


def keep_forever(value: object) -> None:
    """Never destroy this object, not even at interpreter exit: native objects would wait for their threads."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


def _void_all() -> None:
    for owner, void in list(_VOIDS.items()):
        void(owner)
    _VOIDS.clear()


os.register_at_fork(after_in_child=_void_all)
