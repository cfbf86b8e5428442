"""The few bytes the doctor's probes speak: JSON lines on TCP, fixed headers on UDP. Nothing else is ever parsed.

A probe opens with {"token", "kind"}; who answers says {"rank"}. The token is drawn by rank 0 and shared through the
store, so strangers that find the port are dropped.
"""

from __future__ import annotations

import socket
import struct
import time
from typing import TypeVar

import msgspec

from gradwire.errors import LinkError

LONGEST_LINE = 4096
TOKEN_BYTES = 16
UDP_HEADER = struct.Struct("!16sI")


class ProbeRequest(msgspec.Struct, frozen=True):
    """First line of a probe. `kind` is "who", "echo" or "sink"."""

    token: str
    kind: str
    seconds: float = 0.0


class ProbeReply(msgspec.Struct, frozen=True):
    """First line back."""

    rank: int


class ReceivedBytes(msgspec.Struct, frozen=True):
    """What a sink received: payload bytes per second, the start left out."""

    rate: float
    nbytes: int


T = TypeVar("T", bound=msgspec.Struct)


def send_line(connection: socket.socket, value: msgspec.Struct) -> None:
    connection.sendall(msgspec.json.encode(value) + b"\n")


def read_line(connection: socket.socket, kind: type[T], deadline: float) -> T:
    """One line, byte by byte so that nothing after it is swallowed; LinkError when it is late, long or not a `kind`."""
    line = bytearray()
    while not line.endswith(b"\n"):
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        byte = connection.recv(1)
        if not byte or len(line) >= LONGEST_LINE:
            raise LinkError("the connection ended in the middle of a line")
        line += byte
    try:
        return msgspec.json.decode(bytes(line), type=kind)
    except msgspec.DecodeError as error:
        raise LinkError(f"not a line of ours: {error}") from error
