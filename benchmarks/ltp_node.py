"""One host of the LTP benchmarks: receives orders over a Unix socket, exchanges bytes over the lab, reports times.

Started by benchmarks/ltp_lab.py on every host. An order is one JSON line; the answer is one too. Host 0 is the server.
LTP and TCP run the same aggregation: workers send `size` bytes up, the server adds them up and sends the sum down.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np

from gradwire.transport.wires.ltp import RELIABLE, Contract, Endpoint, LtpConfig

SECRET = b"a secret that only this benchmark uses"
PORT = 29700
SERVER = 0
ACK = b"k"


class Side(Protocol):
    """One host's end of a transport."""

    def up(self, step: int) -> list[tuple[float, int]]:
        """Worker: send; server: receive all and add up. Seconds and missing bytes of each transfer."""
        ...

    def down(self, step: int) -> None:
        """The sum goes to all workers."""
        ...

    def sync(self, step: int) -> None:
        """Wait until the server has received all of this step."""
        ...

    def close(self) -> None: ...


class Ltp:
    """Loss-tolerant upward, reliable downward."""

    def __init__(self, rank: int, order: dict[str, Any]) -> None:
        config = LtpConfig("0.0.0.0", PORT, congestion=order.get("congestion", "bbr"))
        self._end = Endpoint(rank, SECRET, config)
        self._rank = rank
        count = len(order["addresses"])
        self._peers = [peer for peer in range(count) if (peer == SERVER) != (rank == SERVER)]
        self._end.connect({peer: (order["addresses"][peer], PORT) for peer in self._peers}, 60)
        self._limit = order["limit"]
        tolerance = order.get("tolerance", 0.98)
        self._contract = RELIABLE if tolerance >= 1 else Contract(tolerance, critical=((0, 64),))
        self._own = np.ones(order["size"] // 4, dtype=np.float32)
        self._buffers = {peer: np.empty_like(self._own) for peer in self._peers}

    def up(self, step: int) -> list[tuple[float, int]]:
        began = time.monotonic()
        tag = 3 * step
        if self._rank != SERVER:
            delivery = self._end.send(SERVER, self._own, self._contract, tag).wait(self._limit)
            return [(time.monotonic() - began, delivery.size - delivery.arrived)]
        transfers = [self._end.post(peer, self._buffers[peer], tag) for peer in self._peers]
        done = [transfer.wait(self._limit) for transfer in transfers]
        self._own[:] = 0
        for buffer in self._buffers.values():
            self._own += buffer
        return [(one.elapsed, one.size - one.arrived) for one in done]

    def down(self, step: int) -> None:
        tag = 3 * step + 1
        if self._rank == SERVER:
            for transfer in [self._end.send(peer, self._own, RELIABLE, tag) for peer in self._peers]:
                transfer.wait(self._limit)
        else:
            self._end.receive(SERVER, self._buffers[SERVER], tag, self._limit)

    def sync(self, step: int) -> None:
        tag, word = 3 * step + 2, bytearray(1)
        if self._rank == SERVER:
            for transfer in [self._end.send(peer, word, Contract(element=1), tag) for peer in self._peers]:
                transfer.wait(self._limit)
        else:
            self._end.receive(SERVER, word, tag, self._limit)

    def links(self) -> dict[str, Any]:
        return {str(peer): link for peer, link in self._end.stats().items()}

    def close(self) -> None:
        self._end.close()


class Tcp:
    """One stream per worker, one thread per stream at the server; large writes, buffers left to the kernel."""

    def __init__(self, rank: int, order: dict[str, Any]) -> None:
        self._rank = rank
        self._own = np.ones(order["size"] // 4, dtype=np.float32)
        count = len(order["addresses"])
        if rank == SERVER:
            with socket.create_server(("", PORT), backlog=64, reuse_port=True) as listener:
                listener.settimeout(60)
                self._links = [self._set(listener.accept()[0], order) for _ in range(count - 1)]
        else:
            self._links = [self._set(_connect(order["addresses"][SERVER]), order)]
        self._buffers = [np.empty_like(self._own) for _ in self._links]
        self._pool = ThreadPoolExecutor(len(self._links))

    def up(self, step: int) -> list[tuple[float, int]]:
        began = time.monotonic()
        if self._rank != SERVER:
            self._links[0].sendall(memoryview(self._own).cast("B"))
            if self._links[0].recv(1) != ACK:
                raise ConnectionError("the server closed the connection")
            return [(time.monotonic() - began, 0)]
        list(self._pool.map(self._receive, self._links, self._buffers))
        self._own[:] = 0
        for buffer in self._buffers:
            self._own += buffer
        return [(time.monotonic() - began, 0)]

    def down(self, step: int) -> None:
        if self._rank == SERVER:
            data = memoryview(self._own).cast("B")
            list(self._pool.map(lambda link: self._send(link, data), self._links))
        else:
            _fill(self._links[0], self._buffers[0])
            self._links[0].sendall(ACK)

    def sync(self, step: int) -> None:
        if self._rank == SERVER:
            for link in self._links:
                link.sendall(ACK)
        elif self._links[0].recv(1) != ACK:
            raise ConnectionError("the server closed the connection")

    @staticmethod
    def _send(link: socket.socket, data: memoryview) -> None:
        link.sendall(data)
        if link.recv(1) != ACK:
            raise ConnectionError("a worker closed the connection")

    def _receive(self, link: socket.socket, buffer: np.ndarray[Any, Any]) -> None:
        _fill(link, buffer)
        link.sendall(ACK)

    def _set(self, link: socket.socket, order: dict[str, Any]) -> socket.socket:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, order["congestion"].encode())
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link.settimeout(order["limit"])
        return link

    def close(self) -> None:
        for link in self._links:
            # On a lossy link megabytes may be unsent; do not wait for them.
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
            link.close()
        self._pool.shutdown()


def _connect(host: str) -> socket.socket:
    deadline = time.monotonic() + 60
    while True:
        try:
            return socket.create_connection((host, PORT), timeout=5)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _fill(link: socket.socket, buffer: np.ndarray[Any, Any]) -> None:
    view = memoryview(buffer).cast("B")
    while view:
        got = link.recv_into(view)
        if not got:
            raise ConnectionError("the peer closed the connection")
        view = view[got:]


def rounds(rank: int, order: dict[str, Any]) -> dict[str, Any]:
    """Steps until the count or the time limit is reached; an unfinished step is not counted."""
    side: Side = Ltp(rank, order) if order["kind"] == "ltp" else Tcp(rank, order)
    steps: list[float] = []
    ups: list[tuple[float, int]] = []
    deadline = time.monotonic() + order["limit"]
    spent = resource.getrusage(resource.RUSAGE_SELF)
    began = time.monotonic()
    try:
        for step in range(order["steps"]):
            started = time.monotonic()
            ups += side.up(step)
            if order.get("down", True):
                side.down(step)
            else:
                # Otherwise a worker that is done would close its connections while data is in flight.
                side.sync(step)
            steps.append(time.monotonic() - started)
            if time.monotonic() > deadline:
                break
    except (TimeoutError, OSError) as error:
        print(f"rank {rank}: {error}", file=sys.stderr)
    elapsed = time.monotonic() - began
    links = side.links() if isinstance(side, Ltp) else {}
    after = resource.getrusage(resource.RUSAGE_SELF)
    side.close()
    cpu = after.ru_utime + after.ru_stime - spent.ru_utime - spent.ru_stime
    return {"steps": steps, "ups": ups, "elapsed": elapsed, "cpu": cpu, "links": links}


def stream(rank: int, order: dict[str, Any]) -> dict[str, Any]:
    """Sends to one peer for some seconds, or receives from it; bytes delivered in each second."""
    peer, seconds, size = order["peer"], order["seconds"], order["size"]
    with Endpoint(rank, SECRET, LtpConfig("0.0.0.0", PORT, congestion=order.get("congestion", "bbr"))) as end:
        end.connect({peer: (order["addresses"][peer], PORT)}, 60)
        data, marks, total = bytearray(size), [], 0
        spent, began, tag = time.process_time(), time.monotonic(), 0
        if order["sends"]:
            in_flight = [end.send(peer, data, RELIABLE, tag := tag + 1) for _ in range(4)]
            while time.monotonic() < began + seconds:
                try:
                    in_flight.pop(0).wait(120)
                except OSError:  # the receiver has ended
                    break
                total += size
                marks.append((time.monotonic() - began, total))
                in_flight.append(end.send(peer, data, RELIABLE, tag := tag + 1))
            for transfer in in_flight:
                transfer.cancel()
        else:
            buffers = [bytearray(size) for _ in range(5)]
            in_flight = [end.post(peer, buffer, tag := tag + 1) for buffer in buffers]
            while time.monotonic() < began + seconds:
                transfer = in_flight.pop(0)
                try:
                    transfer.wait(max(0.05, began + seconds - time.monotonic()))
                except (TimeoutError, OSError):
                    break
                total += size
                in_flight.append(end.post(peer, buffers[tag % 5], tag := tag + 1))
            for transfer in in_flight:
                transfer.cancel()
        elapsed = time.monotonic() - began
        return {"bytes": total, "seconds": elapsed, "marks": marks[:: max(1, len(marks) // 50)],
                "cpu": time.process_time() - spent}  # fmt: skip


def tcp_stream(rank: int, order: dict[str, Any]) -> dict[str, Any]:
    """The same over one TCP connection."""
    peer, seconds, size = order["peer"], order["seconds"], order["size"]
    total, data = 0, bytearray(size)
    if order["sends"]:
        with _connect(order["addresses"][peer]) as link:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, order["congestion"].encode())
            link.settimeout(60)
            spent, began = time.process_time(), time.monotonic()
            while time.monotonic() < began + seconds:
                link.sendall(data)
            return {"cpu": time.process_time() - spent}
    with socket.create_server(("", PORT), reuse_port=True) as listener:
        listener.settimeout(60)
        with listener.accept()[0] as link:
            link.settimeout(60)
            spent, began, ended = time.process_time(), time.monotonic(), time.monotonic()
            while got := link.recv_into(data):
                total += got
                ended = time.monotonic()
            return {"bytes": total, "seconds": ended - began, "cpu": time.process_time() - spent}


def soak(rank: int, order: dict[str, Any]) -> dict[str, Any]:
    """Tolerant and reliable transfers of random sizes, every byte compared, until time is up."""
    peer, seconds = 1 - rank, order["seconds"]
    numbers = np.random.default_rng(order["seed"])
    checked = missing = wrong = transfers = 0
    memory: list[float] = []
    with Endpoint(rank, SECRET, LtpConfig("0.0.0.0", PORT)) as end:
        end.connect({peer: (order["addresses"][peer], PORT)}, 60)
        ends, tag = time.monotonic() + seconds, 0
        while True:
            tag += 1
            size = int(numbers.integers(1_000, 2_000_000)) * 4
            pattern = numbers.integers(1, 255, size, dtype=np.uint8)
            # The first byte, which always arrives, says whether another transfer follows.
            pattern[0] = 1 if rank == 0 and time.monotonic() > ends else 2
            buffer = np.full(size, 77, dtype=np.uint8)
            inbound = end.post(peer, buffer, tag)
            outbound = end.send(peer, pattern, Contract(0.95, critical=((0, 4),)) if tag % 3 else RELIABLE, tag)
            got, sent = inbound.wait(60), outbound.wait(60)
            expected, first = pattern.copy(), int(buffer[0])
            expected[0] = first
            for offset, length in got.missing:
                expected[offset : offset + length] = 0
                missing += length
            wrong += int((buffer != expected).sum()) + (
                0 if got.arrived + sum(n for _, n in got.missing) == size else 1
            )
            lost = sum(length for _, length in sent.missing)
            wrong += 0 if sent.arrived + lost == sent.size else 1
            checked += size
            transfers += 1
            if tag % 20 == 0:
                memory.append(_resident())
            if (rank == 0 and pattern[0] == 1) or (rank == 1 and first == 1):
                break
        counters = {**end.counters(), "links": {str(k): v for k, v in end.stats().items()}}
    return {"transfers": transfers, "bytes": checked, "missing": missing, "wrong": wrong, "rss_mb": memory,
            "counters": counters}  # fmt: skip


def _resident() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6


ORDERS: dict[str, Callable[[int, dict[str, Any]], dict[str, Any]]] = {
    "rounds": rounds,
    "stream": stream,
    "tcp_stream": tcp_stream,
    "soak": soak,
}


def main() -> None:
    rank, path = int(sys.argv[1]), sys.argv[2]
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(path)
        with line.makefile("rw") as file:
            print(rank, file=file, flush=True)
            for text in file:
                order = json.loads(text)
                try:
                    answer = ORDERS[order["do"]](rank, order)
                except Exception as error:  # top of this process: the error is the answer
                    answer = {"error": f"{type(error).__name__}: {error}"}
                print(json.dumps(answer), file=file, flush=True)


if __name__ == "__main__":
    main()
