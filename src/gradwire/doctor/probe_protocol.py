"""Probe protocol of the doctor: JSON lines over TCP, fixed headers over UDP. Nothing else is parsed.

A probe begins with {"token", "kind"}; the responder replies {"rank"}. Rank 0 draws the token and shares it through the
store; connections without it are closed.
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
    """First line of the responder."""

    rank: int


class ReceivedBytes(msgspec.Struct, frozen=True):
    """What a sink received: bytes, and payload bytes per second without the start."""

    rate: float
    nbytes: int


T = TypeVar("T", bound=msgspec.Struct)


def send_line(connection: socket.socket, value: msgspec.Struct) -> None:
    connection.sendall(msgspec.json.encode(value) + b"\n")


def read_line(connection: socket.socket, kind: type[T], deadline: float) -> T:
    """One line, byte by byte so that nothing after it is consumed; LinkError if it is late, long or not a `kind`."""
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
        raise LinkError(f"not a line of the doctor's protocol: {error}") from error
