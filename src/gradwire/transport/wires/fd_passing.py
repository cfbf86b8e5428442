"""Handing over the memory of a board: an open file goes from one process to others of the same user and host.

In: the file, and over the wire a note (a name and a token, 64 bytes) to those who may have it. Out: the same file in
their hands. Only a process of this user that shows the token gets it.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import socket
import struct
import time
from collections.abc import Callable
from typing import Final, Self

from gradwire.errors import LinkError

NOTE: Final = 64
_TOKEN: Final = 32
_SLICE: Final = 0.05
_CREDENTIALS: Final = struct.Struct("iII")  # process, user, group


class FdOffer:
    """One file, offered under a name that exists in this network namespace only. Use as a context manager."""

    def __init__(self, file: int) -> None:
        self._file = file
        self.note = secrets.token_bytes(NOTE)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(_name(self.note))
        self._socket.listen(64)
        self._socket.settimeout(_SLICE)

    def serve(self, count: int, enough: Callable[[], bool], deadline: float) -> None:
        """Hands the file to `count` processes that may have it, or until `enough`; LinkError at the deadline."""
        while count > 0 and not enough():
            if time.monotonic() > deadline:
                raise LinkError("shared memory: not every rank of this host came for it in time")
            with contextlib.suppress(OSError):  # a timeout, or a stranger that left again
                count -= self._hand_over(self._socket.accept()[0])

    def _hand_over(self, other: socket.socket) -> bool:
        with other:
            other.settimeout(1.0)
            raw = other.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            token = other.recv(_TOKEN, socket.MSG_WAITALL)
            welcome = _CREDENTIALS.unpack(raw)[1] == os.geteuid() and hmac.compare_digest(token, self.note[-_TOKEN:])
            if welcome:
                socket.send_fds(other, [b"\0"], [self._file])
            return welcome

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()


def fetch(note: bytes, timeout: float) -> int:
    """The file that the writer of `note` offers; the caller closes it. OSError when there is none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.settimeout(timeout)
        other.connect(_name(note))
        other.sendall(note[-_TOKEN:])
        _, files, _, _ = socket.recv_fds(other, 1, 1)
    if not files:
        raise ConnectionRefusedError("shared memory was refused")
    return int(files[0])


def _name(note: bytes) -> str:
    return "\0gradwire-board-" + note[:_TOKEN].hex()
