"""NAT probe: how other ranks see this one's packets, and what follows about the NAT in front of it.

A reflector answers a datagram with the address it came from, on two ports, and sends the same from a third one that
nobody has sent to. One socket asks both ports. A NAT that uses one public port for both maps independently of the
peer; one through which the third port's answer arrives lets everybody in. Reflectors answer only requests with the
token, each with at most two datagrams of its own size.
"""

from __future__ import annotations

import selectors
import socket
import struct
import threading
import time
from collections.abc import Sequence

from gradwire.doctor.types import HostFacts, NatFacts, NatGuess

# Token, which of the ports answers, and the address and port that the request came from (zeros in a request).
MESSAGE = struct.Struct("!16sB4sH")
PORTS = 3  # the third one only sends
ATTEMPTS = 5  # so that ordinary loss is not taken for a filter
GAP = 0.1  # seconds between them
PATIENCE = 0.5  # for the last answers, beyond any round trip of a path that training can use


class Reflector:
    """Answers from its construction to `close`."""

    def __init__(self, token: str) -> None:
        self._token = bytes.fromhex(token)
        self._sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(PORTS)]
        for one in self._sockets:
            one.bind(("", 0))
            one.setblocking(False)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="doctor-reflector", daemon=True)
        self._thread.start()

    @property
    def ports(self) -> list[int]:
        """The ports that may be asked."""
        return [int(one.getsockname()[1]) for one in self._sockets[: PORTS - 1]]

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        for one in self._sockets:
            one.close()

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector:
            for which in range(PORTS - 1):
                selector.register(self._sockets[which], selectors.EVENT_READ, which)
            while not self._stop.is_set():
                for key, _ in selector.select(0.1):
                    self._answer(key.data)

    def _answer(self, which: int) -> None:
        try:
            data, (address, port) = self._sockets[which].recvfrom(2048)
            if len(data) != MESSAGE.size or MESSAGE.unpack(data)[0] != self._token:
                return
            # One of the two ports also has the third one send, so that a request is never answered with more than two.
            for sender in (which, PORTS - 1) if which == 0 else (which,):
                answer = MESSAGE.pack(self._token, sender, socket.inet_aton(address), port)
                self._sockets[sender].sendto(answer, (address, port))
        except OSError:
            return  # an ICMP error for an earlier answer


def examine_nat(me: HostFacts, peers: Sequence[HostFacts], token: str) -> NatFacts:
    """Ask all peers at once; takes a second."""
    targets = [(peer.route_address, port) for peer in peers for port in peer.reflector_ports]
    seen: set[tuple[str, int]] = set()
    unasked = False
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind((me.route_address, 0))
        own = (me.route_address, int(probe.getsockname()[1]))
        request = MESSAGE.pack(bytes.fromhex(token), 0, bytes(4), 0)
        for attempt in range(ATTEMPTS):
            for target in targets:
                try:
                    probe.sendto(request, target)
                except OSError:
                    continue  # no route, or an ICMP error for an earlier request
            end = time.monotonic() + (GAP if attempt + 1 < ATTEMPTS else PATIENCE)
            for answer in _answers(probe, bytes.fromhex(token), end):
                seen.add(answer[1:])
                unasked = unasked or answer[0] == PORTS - 1
    kind = judge(own, seen, unasked)
    outside = sorted(address for address, _ in seen if address != own[0])
    return NatFacts(me.rank, kind, outside[0] if outside else "")


def judge(own: tuple[str, int], seen: set[tuple[str, int]], unasked: bool) -> NatGuess:
    """What the addresses say that peers saw. Peers on this side of the NAT see our own."""
    outside = {address for address in seen if address[0] != own[0]}
    if not seen:
        return "not known"
    if not outside:
        return "none"
    if len(outside) > 1:
        return "symmetric"
    # A peer on this side may have sent what arrived unasked.
    return "full-cone" if unasked and outside == seen else "port-restricted"


def _answers(probe: socket.socket, token: bytes, end: float) -> list[tuple[int, str, int]]:
    found = []
    while (left := end - time.monotonic()) > 0:
        probe.settimeout(left)
        try:
            data = probe.recv(2048)
        except OSError:
            continue
        if len(data) == MESSAGE.size and (message := MESSAGE.unpack(data))[0] == token:
            found.append((message[1], socket.inet_ntoa(message[2]), message[3]))
    return found
