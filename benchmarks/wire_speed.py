"""Latency and bandwidth of the wires against gloo's send and recv, between two processes of this machine.

    python benchmarks/wire_speed.py --out DIR

Latency is half of a ping-pong's round trip (median, 4 KiB). Bandwidth is that of messages sent one after another, each
receive posted in advance. CPU is user and system time of both processes per byte. Contestants alternate over several
rounds: other programs on the machine make single figures unreliable, so compare the ratios.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import os
import secrets
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from gradwire.transport.wires.base import Wire
from gradwire.transport.wires.ltp import Endpoint, LtpConfig
from gradwire.transport.wires.shm import ShmEndpoint
from gradwire.transport.wires.tcp import TcpConfig, TcpEndpoint

SIZES = {"4 KiB": 4096, "1 MB": 1_000_000, "45 MB": 45_000_000}
COUNTS = {"4 KiB": 2000, "1 MB": 200, "45 MB": 8}
PING = 4096
LIMIT = 60.0
WIRES: dict[str, Callable[[int, bytes], Any]] = {
    "ltp": lambda rank, secret: Endpoint(rank, secret, LtpConfig()),
    "tcp": TcpEndpoint,
    "tcp, auth only": lambda rank, secret: TcpEndpoint(rank, secret, TcpConfig(encrypt=False)),
    "shm": ShmEndpoint,
}


class PeerLink:
    """Sends whole tensors to the peer and receives them."""

    def __init__(self, wire: Wire | None, rank: int) -> None:
        self.wire, self.rank, self.peer = wire, rank, 1 - rank

    def send(self, tensor: torch.Tensor) -> None:
        if self.wire is None:
            dist.send(tensor, self.peer)
        else:
            self.wire.send(self.peer, tensor).wait(LIMIT)

    def receive(self, tensor: torch.Tensor) -> None:
        if self.wire is None:
            dist.recv(tensor, self.peer)
        else:
            self.wire.receive(self.peer, tensor, timeout=LIMIT)


def cpu() -> float:
    spent = os.times()
    return spent.user + spent.system


def ping_pong(link: PeerLink, count: int) -> float:
    """Median one-way time in seconds."""
    buffer, trips = torch.zeros(PING, dtype=torch.uint8), []
    for _ in range(count):
        start = time.perf_counter()
        if link.rank == 0:
            link.send(buffer)
            link.receive(buffer)
        else:
            link.receive(buffer)
            link.send(buffer)
        trips.append(time.perf_counter() - start)
    return statistics.median(trips) / 2


def stream(link: PeerLink, size: int, count: int) -> tuple[float, float]:
    """Bytes per second, and this process's CPU seconds per byte; a reply ends the run."""
    answer = torch.zeros(1, dtype=torch.uint8)
    buffers = [torch.zeros(size, dtype=torch.uint8) for _ in range(2)]
    used, start = cpu(), time.perf_counter()
    if link.wire is None:
        for n in range(count):
            (link.send if link.rank == 0 else link.receive)(buffers[n % 2])
    else:
        begin = link.wire.send if link.rank == 0 else link.wire.post
        in_flight = [begin(link.peer, buffers[n], tag=1) for n in range(2)]
        for n in range(count):
            assert in_flight.pop(0).wait(LIMIT).complete
            if n + 2 < count:
                in_flight.append(begin(link.peer, buffers[n % 2], tag=1))
    (link.receive if link.rank == 0 else link.send)(answer)
    return size * count / (time.perf_counter() - start), (cpu() - used) / (size * count)


def worker(rank: int, name: str, secret: bytes, port: int, pipe: Connection) -> None:
    torch.set_num_threads(1)
    if name == "gloo":
        dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
        link = PeerLink(None, rank)
    else:
        wire = WIRES[name](rank, secret)
        pipe.send(wire.port)
        wire.connect({1 - rank: ("127.0.0.1", pipe.recv())})
        link = PeerLink(wire, rank)
    ping_pong(link, 200)
    found: dict[str, Any] = {"latency": ping_pong(link, 2000)}
    for label, size in SIZES.items():
        stream(link, size, 2)
        found[label] = stream(link, size, COUNTS[label])
    pipe.send(found)
    pipe.recv()
    if link.wire is not None:
        link.wire.close()
    else:
        dist.destroy_process_group()


def run(name: str, port: int) -> dict[str, float]:
    """One run of one contestant, in two new processes."""
    context = mp.get_context("spawn")
    secret = secrets.token_bytes(32)
    pipes = [context.Pipe() for _ in range(2)]
    processes = [
        context.Process(target=worker, args=(rank, name, secret, port, pipes[rank][1]), daemon=True)
        for rank in range(2)
    ]
    for process in processes:
        process.start()
    ends = [pipe[0] for pipe in pipes]
    if name != "gloo":
        ports = [end.recv() for end in ends]
        for end, other in zip(ends, reversed(ports), strict=True):
            end.send(other)
    first, second = (end.recv() for end in ends)
    for end in ends:
        end.send("done")
    for process in processes:
        process.join(LIMIT)
    result = {"latency": first["latency"]}
    for label in SIZES:
        result[label] = first[label][0]
        result[f"{label} cpu"] = first[label][1] + second[label][1]
    return result


def page(results: dict[str, list[dict[str, float]]]) -> str:
    best = {name: {key: statistics.median(r[key] for r in runs) for key in runs[0]} for name, runs in results.items()}
    spread = {name: [r["latency"] * 1e6 for r in runs] for name, runs in results.items()}
    lines = [
        "| wire | 4 KiB one way | (all rounds) | against gloo | 4 KiB stream | 1 MB | 45 MB | CPU s/GB at 45 MB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, one in best.items():
        rates = " | ".join(f"{one[label] / 1e9:.2f} GB/s" for label in SIZES)
        rounds = ", ".join(f"{value:.0f}" for value in spread[name])
        ratio = best["gloo"]["latency"] / one["latency"]
        lines.append(
            f"| {name} | {one['latency'] * 1e6:.1f} us | {rounds} | {ratio:.1f}x | {rates} "
            f"| {one['45 MB cpu'] * 1e9:.2f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="write wire-speed.json there")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--port", type=int, default=29431, help="of gloo's store")
    arguments = parser.parse_args()
    names = ["gloo", *WIRES]
    results: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for turn in range(arguments.rounds):
        for name in names:
            results[name].append(run(name, arguments.port + turn))
    print(page(results))
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "wire-speed.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
