"""TCP payload: the bytes that this process's TCP connections carried, from TCP_INFO of every connected socket.

`bytes_sent` counts payload, retransmissions included; less `bytes_retrans` it is what the program sent. Unlike
device counters it contains no headers and no traffic of other programs, and offloading does not distort it. The store's
connections are recognised by their port and left out.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
from dataclasses import dataclass

# struct tcp_info, Linux: bytes_sent and bytes_retrans are 64-bit fields at these offsets since 4.19.
BYTES_SENT, BYTES_RETRANS = 200, 208
TCP_INFO_LENGTH = 240


@dataclass(frozen=True, slots=True)
class Payload:
    """Bytes handed to TCP by this process, and those that TCP sent again."""

    sent: int
    retransmitted: int


def payload(without_port: int) -> dict[int, Payload]:
    """By inode, so that two readings can be matched."""
    found: dict[int, Payload] = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            status = os.fstat(int(name))
        except OSError:
            continue
        if stat.S_ISSOCK(status.st_mode):
            one = _read(int(name), without_port)
            if one is not None:
                found[status.st_ino] = one
    return found


def _read(fd: int, without_port: int) -> Payload | None:
    with socket.socket(fileno=os.dup(fd)) as copy:
        if copy.family not in (socket.AF_INET, socket.AF_INET6) or copy.type != socket.SOCK_STREAM:
            return None
        try:
            if without_port in (copy.getpeername()[1], copy.getsockname()[1]):
                return None
            info = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_LENGTH)
        except OSError:
            return None  # a listening socket
    if len(info) < BYTES_RETRANS + 8:
        return None
    sent, again = struct.unpack_from("=QQ", info, BYTES_SENT)
    return Payload(sent - again, again)


def difference(before: dict[int, Payload], after: dict[int, Payload]) -> Payload:
    nothing = Payload(0, 0)
    sent = sum(one.sent - before.get(inode, nothing).sent for inode, one in after.items())
    again = sum(one.retransmitted - before.get(inode, nothing).retransmitted for inode, one in after.items())
    return Payload(sent, again)
