"""Cables: connects LTP endpoints of one process by real datagrams over loopback, through relays that can be cut."""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import combinations

from gradwire.transport.wires.ltp import Endpoint, LtpConfig
from tests.tree.grid import LIMIT, SECRET

# A peer is lost after two seconds of silence: quick enough for tests, and longer than any pause of a busy machine.
QUICK = LtpConfig(keepalive=0.1, dead_after=2.0, connect_timeout=10.0)
HOST = "127.0.0.1"


class Cables:
    """One relay per pair. Each end sees the other at a socket of the relay, which forwards what it receives."""

    def __init__(self, ports: dict[int, int]) -> None:
        self.cut: set[int] = set()
        self._selector = selectors.DefaultSelector()
        self._stop = threading.Event()
        self.seen: dict[int, dict[int, tuple[str, int]]] = {rank: {} for rank in ports}
        for first, second in combinations(ports, 2):
            near, far = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
            for end in (near, far):
                end.bind((HOST, 0))
                end.setblocking(False)
            self.seen[first][second], self.seen[second][first] = near.getsockname(), far.getsockname()
            self._selector.register(near, selectors.EVENT_READ, (far, ports[second], {first, second}))
            self._selector.register(far, selectors.EVENT_READ, (near, ports[first], {first, second}))
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            for key, _ in self._selector.select(0.05):
                out, port, pair = key.data
                try:
                    data = key.fileobj.recv(65536)
                    if not pair & self.cut:
                        out.sendto(data, (HOST, port))
                except OSError:
                    continue  # an end was closed, or a buffer is full: packets get lost

    def close(self) -> None:
        self._stop.set()
        self._thread.join(LIMIT)
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()
        self._selector.close()


@contextmanager
def cabled_wires(count: int) -> Iterator[tuple[list[Endpoint], Cables]]:
    with ExitStack() as stack:
        ends = [stack.enter_context(Endpoint(rank, SECRET, QUICK)) for rank in range(count)]
        cables = Cables({end.rank: end.port for end in ends})
        stack.callback(cables.close)
        connecting = [threading.Thread(target=end.connect, args=(cables.seen[end.rank],)) for end in ends]
        for thread in connecting:
            thread.start()
        for thread in connecting:
            thread.join(LIMIT)
        yield ends, cables
