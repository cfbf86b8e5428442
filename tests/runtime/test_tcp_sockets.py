"""TCP sockets: the kernel's view of this process's own connections, whatever opened them, without touching them."""

from __future__ import annotations

import fcntl
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gradwire.runtime.kernel_acks import peer_addresses
from gradwire.runtime.tcp_sockets import TcpSockets, own_addresses
from gradwire.sense.tcp_info import TcpInfo

HERE = "127.0.0.1"


@contextmanager
def connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends; what the first sends, a thread reads from the second."""
    with socket.create_server((HERE, 0)) as server, socket.create_connection(server.getsockname()) as client:
        accepted, _ = server.accept()
        with accepted:
            reader = threading.Thread(target=lambda: [None for _ in iter(lambda: accepted.recv(1 << 20), b"")])
            reader.start()
            try:
                yield client, accepted
            finally:
                client.shutdown(socket.SHUT_RDWR)
                reader.join(10)


def open_before() -> set[int]:
    """Connections of this process that earlier tests left open, such as those of a process group."""
    return set(TcpSockets({HERE}).read())


def sending(sockets: TcpSockets, before: set[int]) -> TcpInfo:
    return max((info for key, info in sockets.read().items() if key not in before), key=lambda info: info.acked)


def test_a_connection_is_found_and_described() -> None:
    before = open_before()
    with connection() as (client, _):
        client.sendall(bytes(4 << 20))
        sockets, deadline = TcpSockets({HERE}), time.monotonic() + 20
        while (info := sending(sockets, before)).acked < 4 << 20 and time.monotonic() < deadline:
            time.sleep(0.01)
        # SYN counts as one byte.
        assert 4 << 20 <= info.acked <= (4 << 20) + 1
        assert info.sent >= info.acked - 1
        assert 0 < info.min_rtt <= info.rtt + 1e-3
        assert info.delivery_rate > 0
        assert info.window >= info.mss > 0
        assert HERE in own_addresses()


def test_the_time_a_connection_was_busy_grows_while_it_sends() -> None:
    """The kernel counts it in ticks of several milliseconds, so a short transfer may take none."""
    before = open_before()
    with connection() as (client, _):
        sockets, deadline = TcpSockets({HERE}), time.monotonic() + 20
        while time.monotonic() < deadline:
            client.sendall(bytes(4 << 20))
            if sending(sockets, before).busy > 0:
                return
    pytest.fail("20 s of sending, and the kernel counts no busy time")


def test_only_peers_count_and_no_store() -> None:
    with connection() as (client, _):
        port = client.getpeername()[1]
        assert len(TcpSockets({HERE}).read()) >= 2
        assert not TcpSockets({"192.0.2.7"}).read()
        without = TcpSockets({HERE}, {port}).read()
        assert len(TcpSockets({HERE}).read()) == len(without) + 2


def test_foreign_descriptors_are_left_as_they_are() -> None:
    """Also with a default timeout, which would make Python's own socket objects non-blocking."""
    socket.setdefaulttimeout(5.0)
    try:
        with connection() as (client, _):
            client.setblocking(True)
            before = set(os.listdir("/proc/self/fd")), fcntl.fcntl(client.fileno(), fcntl.F_GETFL)
            assert TcpSockets({HERE}).read()
            assert (set(os.listdir("/proc/self/fd")), fcntl.fcntl(client.fileno(), fcntl.F_GETFL)) == before
    finally:
        socket.setdefaulttimeout(None)


def test_new_and_closed_connections_are_noticed() -> None:
    now = [100.0]
    sockets = TcpSockets({HERE}, clock=lambda: now[0])
    before = set(sockets.read())
    with connection():
        now[0] += 60.0
        opened = set(sockets.read()) - before
        assert len(opened) == 2
    assert not opened & set(sockets.read()), "a closed socket is not reported"


def test_a_reused_descriptor_is_not_taken_for_the_old_connection() -> None:
    sockets, before = TcpSockets({HERE}, clock=lambda: 0.0), open_before()
    with connection():
        known = set(sockets.read()) - before
    with connection() as (client, _):
        assert not known & set(sockets.read())
        assert client.fileno() >= 0


def test_loopback_counts_only_where_there_is_nothing_else() -> None:
    assert peer_addresses(["127.0.0.1", "10.0.0.2"]) == {"10.0.0.2"}
    assert peer_addresses(["127.0.0.1"]) == {"127.0.0.1"}
