"""Responder: the server side of the probes. One thread accepts connections and datagrams, one more serves each probe.

It listens on all addresses, because the doctor checks which of them work, and ignores requests without the token.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time

from gradwire.doctor.probe_protocol import UDP_HEADER, ProbeReply, ProbeRequest, ReceivedBytes, read_line, send_line
from gradwire.errors import LinkError

SILENCE = 5.0  # seconds a probe may be silent
LONGEST = 60.0  # seconds a probe may last
MOST_PROBES = 64  # at a time
CHUNK = 1 << 18
# The first share of a transfer is TCP's slow start and does not count.
SETTLING = 0.3


class Responder:
    """Responds to probes from its construction to `close`."""

    def __init__(self, rank: int, token: str) -> None:
        self._rank = rank
        self._token = token
        self._stop = threading.Event()
        self._slots = threading.BoundedSemaphore(MOST_PROBES)
        self._tcp = socket.create_server(("", 0), backlog=128)
        self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._udp.bind(("", 0))
        self._thread = threading.Thread(target=self._serve, name="doctor-responder", daemon=True)
        self._thread.start()

    @property
    def tcp_port(self) -> int:
        return int(self._tcp.getsockname()[1])

    @property
    def udp_port(self) -> int:
        return int(self._udp.getsockname()[1])

    def close(self) -> None:
        """Stop accepting probes; running ones end at their own deadlines."""
        self._stop.set()
        self._thread.join(SILENCE)
        self._tcp.close()
        self._udp.close()

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._tcp, selectors.EVENT_READ)
            selector.register(self._udp, selectors.EVENT_READ)
            while not self._stop.is_set():
                for key, _ in selector.select(0.1):
                    if key.fileobj is self._udp:
                        self._echo_datagram()
                    else:
                        self._accept()

    def _accept(self) -> None:
        try:
            connection, _ = self._tcp.accept()
        except OSError:
            return
        if not self._slots.acquire(blocking=False):
            connection.close()
            return
        threading.Thread(target=self._probe, args=(connection,), daemon=True).start()

    def _echo_datagram(self) -> None:
        """Echo the header alone: a reply is never larger than the request."""
        try:
            data, sender = self._udp.recvfrom(65536)
            if len(data) >= UDP_HEADER.size and data[:16].hex() == self._token:
                self._udp.sendto(data[: UDP_HEADER.size], sender)
        except OSError:
            return  # an ICMP error for an earlier reply

    def _probe(self, connection: socket.socket) -> None:
        deadline = time.monotonic() + LONGEST
        try:
            with connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                request = read_line(connection, ProbeRequest, time.monotonic() + SILENCE)
                if request.token != self._token:
                    return
                send_line(connection, ProbeReply(self._rank))
                connection.settimeout(SILENCE)
                if request.kind == "echo":
                    _echo(connection, deadline)
                elif request.kind == "sink":
                    send_line(connection, _sink(connection, request.seconds * SETTLING, deadline))
        except (OSError, LinkError):
            pass  # the probing rank sees and reports it
        finally:
            self._slots.release()


def _echo(connection: socket.socket, deadline: float) -> None:
    while time.monotonic() < deadline and (data := connection.recv(64)):
        connection.sendall(data)


def _sink(connection: socket.socket, settling: float, deadline: float) -> ReceivedBytes:
    """Read to the end; the rate is that after `settling` seconds, or of the whole transfer if that part is short."""
    buffer = bytearray(CHUNK)
    total, start = connection.recv_into(buffer), time.monotonic()
    settled, settled_at, now = 0, 0.0, start
    while now < deadline and (got := connection.recv_into(buffer)):
        total += got
        now = time.monotonic()
        if not settled and now - start >= settling:
            settled, settled_at = total, now
    rate = rate_after(total, now - start, settled, settled_at - start if settled else 0.0)
    return ReceivedBytes(rate, total)


def rate_after(total: int, seconds: float, settled: int, settled_seconds: float) -> float:
    """Bytes per second after the settled point if at least half of the time is after it, otherwise overall."""
    if settled and seconds - settled_seconds >= 0.5 * seconds > 0:
        return (total - settled) / (seconds - settled_seconds)
    return total / max(seconds, 1e-6)
