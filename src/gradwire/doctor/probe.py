"""Probe: the client side of the measurements. Each probe has a deadline and a byte limit and returns its failures."""

from __future__ import annotations

import socket
import struct
import time

from gradwire.doctor.probe_protocol import UDP_HEADER, ProbeReply, ProbeRequest, ReceivedBytes, read_line, send_line
from gradwire.doctor.types import FlowResult, HostFacts, Reach
from gradwire.errors import LinkError

CONNECT_SECONDS = 3.0
ECHOES = 15
DATAGRAMS, DATAGRAM_GAP = 150, 0.002
IP_UDP_HEADERS = 28
SMALLEST_MTU = 576
# linux/in.h; Python 3.11's socket module does not name them.
IP_MTU_DISCOVER, IP_PMTUDISC_PROBE = 10, 3
TCP_NOTSENT_LOWAT = getattr(socket, "TCP_NOTSENT_LOWAT", 25)
# struct tcp_info: total_retrans, data_segs_out.
TOTAL_RETRANS, DATA_SEGS_OUT = 100, 156


def connect(address: str, port: int, request: ProbeRequest, expected: int) -> socket.socket:
    """A connection to the responder of rank `expected`; LinkError with the reason otherwise."""
    deadline = time.monotonic() + CONNECT_SECONDS
    try:
        connection = socket.create_connection((address, port), timeout=CONNECT_SECONDS)
    except OSError as error:
        reason = "no reply" if isinstance(error, TimeoutError) else error.strerror or str(error)
        raise LinkError(f"{address}:{port}: {reason}") from error
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        send_line(connection, request)
        reply = read_line(connection, ProbeReply, deadline)
        if reply.rank != expected:
            raise LinkError(f"{address}:{port} is rank {reply.rank}, not {expected}")
    except (OSError, LinkError) as error:
        connection.close()
        raise LinkError(f"{address}:{port}: {error}") from error
    return connection


def reach(me: HostFacts, peer: HostFacts, token: str) -> Reach:
    """Measure round trip, loss and the largest packet; check whether gloo's address leads to the peer."""
    try:
        with connect(peer.route_address, peer.tcp_port, ProbeRequest(token, "echo"), peer.rank) as connection:
            rtt = round_trip(connection)
    except (OSError, LinkError) as error:
        return Reach(me.rank, peer.rank, problem=str(error))
    route = me.route_interface
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((peer.route_address, peer.udp_port))
        lost = datagram_loss(probe, bytes.fromhex(token), rtt)
        wanted = route.mtu if route else 1500
        mtu = largest_packet(probe, bytes.fromhex(token), wanted, rtt) if lost < 1 else None
    return Reach(me.rank, peer.rank, "", rtt, _gloo_reachable(peer, token), lost, DATAGRAMS, mtu, wanted)


def _gloo_reachable(peer: HostFacts, token: str) -> bool | None:
    if peer.gloo_address is None:
        return False
    if peer.gloo_address == peer.route_address:
        return True
    try:
        connect(peer.gloo_address, peer.tcp_port, ProbeRequest(token, "who"), peer.rank).close()
    except LinkError:
        return False
    return True


def round_trip(connection: socket.socket) -> float:
    """The shortest of a few round trips: the path without queueing and scheduling delays."""
    connection.settimeout(CONNECT_SECONDS)
    times = []
    for _ in range(ECHOES):
        start = time.perf_counter()
        connection.sendall(b"x")
        if not connection.recv(1):
            raise LinkError("the peer closed the connection")
        times.append(time.perf_counter() - start)
    return min(times)


def datagram_loss(probe: socket.socket, token: bytes, rtt: float) -> float:
    """Share of small, paced datagrams that were not echoed."""
    echoed: set[int] = set()
    probe.settimeout(0.0)
    for number in range(DATAGRAMS):
        _try_send(probe, UDP_HEADER.pack(token, number))
        time.sleep(DATAGRAM_GAP)
        _collect(probe, echoed)
    deadline = time.monotonic() + 0.2 + 3 * rtt
    while len(echoed) < DATAGRAMS and time.monotonic() < deadline:
        time.sleep(0.005)
        _collect(probe, echoed)
    return 1 - len(echoed) / DATAGRAMS


def largest_packet(probe: socket.socket, token: bytes, wanted: int, rtt: float) -> int | None:
    """The largest IP packet with "don't fragment" that arrives, up to `wanted`; by bisection if `wanted` fails."""
    probe.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE)
    if wanted > 9216 or _arrives(probe, token, wanted, rtt):  # above 9216: loopback, no path to examine
        return wanted
    low, high = SMALLEST_MTU, wanted
    if not _arrives(probe, token, low, rtt):
        return None
    while high - low > 8:
        middle = (low + high) // 2
        low, high = (middle, high) if _arrives(probe, token, middle, rtt) else (low, middle)
    return low


def _arrives(probe: socket.socket, token: bytes, size: int, rtt: float) -> bool:
    """Three attempts, so that ordinary loss is not reported as a black hole."""
    for attempt in range(3):
        number = 1_000_000 + size * 4 + attempt
        packet = UDP_HEADER.pack(token, number).ljust(size - IP_UDP_HEADERS, b"\0")
        if not _try_send(probe, packet):
            return False
        echoed: set[int] = set()
        deadline = time.monotonic() + 0.15 + 3 * rtt
        while time.monotonic() < deadline:
            time.sleep(0.002)
            _collect(probe, echoed)
            if number in echoed:
                return True
    return False


def _try_send(probe: socket.socket, packet: bytes) -> bool:
    try:
        probe.send(packet)
    except OSError:
        return False  # too long for the interface, or an ICMP error
    return True


def _collect(probe: socket.socket, echoed: set[int]) -> None:
    while True:
        try:
            data = probe.recv(2048)
        except OSError:
            return
        if len(data) == UDP_HEADER.size:
            echoed.add(UDP_HEADER.unpack(data)[1])


def bulk(me: HostFacts, peer: HostFacts, token: str, seconds: float, most_bytes: int) -> FlowResult:
    """Send as fast as TCP allows for `seconds` or `most_bytes`; the receiver reports the rate."""
    try:
        with connect(peer.route_address, peer.tcp_port, ProbeRequest(token, "sink", seconds), peer.rank) as connection:
            # Unsent data in the socket's buffer would still be sent after `seconds`.
            connection.setsockopt(socket.IPPROTO_TCP, TCP_NOTSENT_LOWAT, 1 << 17)
            connection.settimeout(seconds + CONNECT_SECONDS)
            _send_bulk(connection, seconds, most_bytes)
            connection.shutdown(socket.SHUT_WR)
            received = read_line(connection, ReceivedBytes, time.monotonic() + seconds + 10)
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
    except (OSError, LinkError) as error:
        return FlowResult(me.rank, peer.rank, problem=str(error))
    retransmitted, sent = (struct.unpack_from("=I", info, offset)[0] for offset in (TOTAL_RETRANS, DATA_SEGS_OUT))
    return FlowResult(me.rank, peer.rank, "", received.rate, retransmitted / max(sent, 1))


def _send_bulk(connection: socket.socket, seconds: float, most_bytes: int) -> None:
    block = memoryview(bytes(1 << 16))
    sent, end = 0, time.monotonic() + seconds
    while sent < most_bytes and time.monotonic() < end:
        sent += connection.send(block)
