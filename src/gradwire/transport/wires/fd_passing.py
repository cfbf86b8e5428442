"""File descriptor passing: gives an open file (shared memory) to other processes of the same user and host.

In: the file, and a credential (a socket name and a token, 64 bytes) that is sent to its receivers over the wire. Out:
the same file, open in their processes. Only a process of this user that sends the token gets it.
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

CREDENTIAL_BYTES: Final = 64
_TOKEN: Final = 32
_SLICE: Final = 0.05
_CREDENTIALS: Final = struct.Struct("iII")  # process, user, group


class FdOffer:
    """One file, offered on a socket whose name exists in this network namespace only. Use as a context manager."""

    def __init__(self, file: int) -> None:
        self._file = file
        self.credential = secrets.token_bytes(CREDENTIAL_BYTES)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(_name(self.credential))
        self._socket.listen(64)
        self._socket.settimeout(_SLICE)

    def serve(self, count: int, enough: Callable[[], bool], deadline: float) -> None:
        """Gives the file to `count` processes with the token, or until `enough`; LinkError at the deadline."""
        while count > 0 and not enough():
            if time.monotonic() > deadline:
                raise LinkError("shared memory: not every rank of this host fetched it in time")
            with contextlib.suppress(OSError):  # a timeout, or an unknown process that disconnected
                count -= self._pass_to(self._socket.accept()[0])

    def _pass_to(self, other: socket.socket) -> bool:
        with other:
            other.settimeout(1.0)
            raw = other.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            token = other.recv(_TOKEN, socket.MSG_WAITALL)
            allowed = _CREDENTIALS.unpack(raw)[1] == os.geteuid() and hmac.compare_digest(
                token, self.credential[-_TOKEN:]
            )
            if allowed:
                socket.send_fds(other, [b"\0"], [self._file])
            return allowed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()


def receive_fd(credential: bytes, timeout: float) -> int:
    """The file offered under `credential`; the caller closes it. OSError when there is none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.settimeout(timeout)
        other.connect(_name(credential))
        other.sendall(credential[-_TOKEN:])
        _, files, _, _ = socket.recv_fds(other, 1, 1)
    if not files:
        raise ConnectionRefusedError("shared memory was refused")
    return int(files[0])


def _name(credential: bytes) -> str:
    return "\0gradwire-shm-" + credential[:_TOKEN].hex()
