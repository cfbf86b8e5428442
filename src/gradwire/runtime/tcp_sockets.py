"""TCP sockets: this process's TCP connections to other ranks, whoever opened them, and what the kernel knows of them.

gloo and NCCL open their sockets themselves. They are found in /proc/self/fd and queried with getsockopt(TCP_INFO):

    1. the peers' addresses are given; connections of torch's store (by its port) are not data and are left out
    2. descriptors are listed again when their number changes (from Linux 6.2 on it is the directory's size), a socket
       is gone, or after REFRESH seconds
    3. every read works on a duplicate that is closed at once: the owner may close its descriptor at any time, and a
       duplicate that stayed open would keep the connection alive. Nothing is set on a socket

Nothing here raises: what cannot be read is not reported. Calls keep the GIL: a system call takes less than a
microsecond, getting the GIL back from a busy training thread up to milliseconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import socket
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gradwire.sense.tcp_info import TcpInfo, parse

# Seconds after which descriptors are listed again although their number did not change.
REFRESH: Final = 10.0
# Connections that are read in one turn, about 20 microseconds each; of more, those that have sent most are read.
MOST: Final = 128
# Bytes requested of TCP_INFO and TCP_CC_INFO; kernels fill as much as they know and return the length.
_ROOM: Final = 280
_CC_INFO: Final = 26
_CC_ROOM: Final = 64
_DESCRIPTORS: Final = "/proc/self/fd"
_SO_COOKIE: Final = 57
_SLOW_START_SETTING: Final = Path("/proc/sys/net/ipv4/tcp_slow_start_after_idle")


def slow_start_after_idle() -> bool | None:
    """The setting of this network namespace; None where there is no such file."""
    try:
        return _SLOW_START_SETTING.read_text().strip() != "0"
    except OSError:
        return None


@dataclass(frozen=True, slots=True)
class _Known:
    """A descriptor and the kernel's cookie of its socket: a number may be closed and used again. `explains`: whether
    its congestion control answers TCP_CC_INFO, as BBR does. `address` is that of the other end."""

    descriptor: int
    cookie: int
    explains: bool
    address: str


@dataclass(slots=True)
class TcpSockets:
    """This process's connections to `peers` (addresses), except those from or to one of `ports`."""

    peers: Collection[str]
    ports: Collection[int] = ()
    clock: Callable[[], float] = time.monotonic
    _known: list[_Known] = field(default_factory=list)
    _count: int = -1
    _listed: float = 0.0

    def read(self) -> dict[int, TcpInfo]:
        """By the kernel's cookie of the connection; empty where nothing can be read."""
        with contextlib.suppress(Exception):
            self._refresh()
            read = {known.cookie: _query(known) for known in self._known}
            found = {cookie: info for cookie, info in read.items() if info is not None}
            if len(found) < len(read):
                self._count = -1
            return found
        return {}

    def addresses(self) -> dict[int, str]:
        """The other end of each connection, as of the last call of `read`."""
        return {known.cookie: known.address for known in self._known}

    def _refresh(self) -> None:
        now, count = self.clock(), os.stat(_DESCRIPTORS).st_size
        if count == self._count and now - self._listed < REFRESH:
            return
        self._count, self._listed = count, now
        known = [one for name in os.listdir(_DESCRIPTORS) if (one := self._recognise(int(name))) is not None]
        if len(known) > MOST:
            read = [(one, _query(one)) for one in known]
            known = [one for one, _ in sorted(read, key=lambda pair: -(pair[1].acked if pair[1] else 0))]
        self._known = known[:MOST]

    def _recognise(self, descriptor: int) -> _Known | None:
        ends = _ends(descriptor)
        if ends is None:
            return None
        (_, own_port), (host, port) = ends
        if host not in self.peers or own_port in self.ports or port in self.ports:
            return None
        cookie = _cookie(descriptor)
        explains = bool(_getsockopt(descriptor, socket.IPPROTO_TCP, _CC_INFO, _CC_ROOM))
        return None if cookie is None else _Known(descriptor, cookie, explains, host)


def own_addresses() -> list[str]:
    """Addresses from which this process has TCP connections."""
    found = set()
    with contextlib.suppress(Exception):
        for name in os.listdir(_DESCRIPTORS):
            ends = _ends(int(name))
            if ends is not None:
                found.add(ends[0][0])
    return sorted(found)


def _query(known: _Known) -> TcpInfo | None:
    """TCP_INFO of a descriptor, if it is still the same socket."""
    copy = _libc.fcntl(known.descriptor, fcntl.F_DUPFD_CLOEXEC, 0)
    if copy < 0:
        return None
    try:
        data = _getsockopt(copy, socket.IPPROTO_TCP, socket.TCP_INFO, _ROOM)
        if data is None or _cookie(copy) != known.cookie:
            return None
        cc = _getsockopt(copy, socket.IPPROTO_TCP, _CC_INFO, _CC_ROOM) if known.explains else None
        return parse(data, cc or b"")
    finally:
        _libc.close(copy)


def _cookie(descriptor: int) -> int | None:
    data = _getsockopt(descriptor, socket.SOL_SOCKET, _SO_COOKIE, 8)
    return None if data is None else int.from_bytes(data, "little")


# Not Python's socket objects: making one of a descriptor may change its blocking mode (socket.setdefaulttimeout).
_libc: Final = ctypes.PyDLL(None)


def _getsockopt(descriptor: int, level: int, option: int, room: int) -> bytes | None:
    buffer, size = (ctypes.c_char * room)(), ctypes.c_uint32(room)
    if _libc.getsockopt(descriptor, level, option, buffer, ctypes.byref(size)) != 0:
        return None
    return buffer.raw[: size.value]


End = tuple[str, int]


def _ends(descriptor: int) -> tuple[End, End] | None:
    """The own and the other end of a TCP connection; None where the descriptor is none."""
    kind = _getsockopt(descriptor, socket.SOL_SOCKET, socket.SO_TYPE, 4)
    if kind is None or int.from_bytes(kind, "little") != socket.SOCK_STREAM:
        return None
    own, other = _name(_libc.getsockname, descriptor), _name(_libc.getpeername, descriptor)
    return (own, other) if own is not None and other is not None else None


def _name(call: Callable[..., int], descriptor: int) -> End | None:
    buffer, size = ctypes.create_string_buffer(128), ctypes.c_uint32(128)
    if call(descriptor, buffer, ctypes.byref(size)) != 0:
        return None
    raw = buffer.raw
    family = int.from_bytes(raw[:2], "little")
    port = int.from_bytes(raw[2:4], "big")
    if family == socket.AF_INET:
        return socket.inet_ntop(socket.AF_INET, raw[4:8]), port
    if family != socket.AF_INET6:
        return None
    if raw[8:20] == b"\0" * 10 + b"\xff\xff":
        return socket.inet_ntop(socket.AF_INET, raw[20:24]), port
    return socket.inet_ntop(socket.AF_INET6, raw[8:24]), port
