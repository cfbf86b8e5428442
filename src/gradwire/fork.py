"""Fork: what a child process inherits of its parent's connections, threads and files is void in the child.

In: an object and what makes it void. Out: that call, in every child that is forked while the object lives. A child (a
DataLoader worker) has copies of the objects, but none of the threads behind them, and shares the sockets and files.
Closed there, they would say goodbye to peers in the parent's name, write its events twice, or wait for threads that do
not exist. Voiding happens before any code of the child runs; it must neither lock, wait nor raise.
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
    """Have `void(owner)` called in every process that is forked from this one while the owner lives."""
    _VOIDS[owner] = void  # type: ignore[assignment]


def keep_forever(value: object) -> None:
    """Never destroy this object, not even at the interpreter's end: native ones would wait for their threads."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


def _void_all() -> None:
    for owner, void in list(_VOIDS.items()):
        void(owner)
    _VOIDS.clear()


os.register_at_fork(after_in_child=_void_all)
