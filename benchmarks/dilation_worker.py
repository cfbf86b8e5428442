"""One rank of benchmarks/dilation.py: `steps` trains a paced model, `tcp` sends over one plain TCP connection.

It knows nothing of dilated time: what it prints is what any program in a dilated lab would measure.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

LAYERS, WIDTH = 8, 50_000  # 0.4 million parameters, 1.6 MB: their processor time, which does not dilate, is small
CHUNK = 1 << 16
PORT = 7001


def steps(compute: float, count: int, contestants: list[list[str]]) -> dict[str, list[float]]:
    """Seconds of each step of each contestant: [name, level or "" for plain DDP, transport]."""
    import torch
    import torch.distributed as dist
    from torch import Tensor, nn
    from torch.nn.parallel import DistributedDataParallel

    import gradwire

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    generator = torch.Generator().manual_seed(dist.get_rank())

    class Pause(torch.autograd.Function):
        """Computes nothing for as long as a layer's backward takes."""

        @staticmethod
        def forward(ctx: Any, x: Tensor, weight: Tensor, gradient: Tensor) -> Tensor:
            ctx.gradient = gradient
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Any:
            time.sleep(compute * 2 / 3 / LAYERS)
            return grads[0], ctx.gradient, None

    class Paced(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.ParameterList([nn.Parameter(torch.zeros(WIDTH)) for _ in range(LAYERS)])
            self.gradients = [torch.randn(WIDTH, generator=generator) for _ in range(LAYERS)]

        def forward(self, x: Tensor) -> Tensor:
            time.sleep(compute / 3)
            x = x.clone().requires_grad_()
            for weight, gradient in zip(self.weights, self.gradients, strict=True):
                x = Pause.apply(x, weight, gradient)  # type: ignore[no-untyped-call]
            return x

    found: dict[str, list[float]] = {}
    for name, level, transport in contestants:
        model = DistributedDataParallel(Paced(), bucket_cap_mb=1, init_sync=False)
        config = {"level": level, "transport": {"kind": transport}, "compress": {"warmup": 0}}
        handle = gradwire.attach(model, config) if level else None
        times = []
        for _ in range(count):
            began = time.perf_counter()
            model(torch.zeros(1)).sum().backward()
            times.append(time.perf_counter() - began)
        dist.barrier()
        if handle is not None:
            handle.close()
        found[name] = times
    dist.destroy_process_group()
    return found


def tcp(seconds: float, burst: int, pause: float, count: int, kernel_rto: bool) -> dict[str, Any]:
    """Rank 0: goodput of `seconds` of sending, then the times of `count` bursts of bytes, each after a pause."""
    if kernel_rto:  # as if the lab did not stretch it
        Path("/proc/sys/net/ipv4/tcp_rto_min_us").write_text("200000")
    if os.environ["RANK"] != "0":
        with socket.create_server(("", PORT)) as server:
            answer(server, burst, count)
        return {}
    with connected(os.environ["PEER"]) as sock:
        began, sent, data = time.perf_counter(), 0, bytes(CHUNK)
        while time.perf_counter() < began + seconds:
            sock.sendall(data)
            sent += CHUNK
        sock.sendall(b"\1" * CHUNK)
        sock.recv(1)  # all has arrived
        mbit = sent * 8e-6 / (time.perf_counter() - began)
    times = []
    with connected(os.environ["PEER"]) as sock:
        for _ in range(count):
            time.sleep(pause)
            began = time.perf_counter()
            sock.sendall(bytes(burst))
            sock.recv(1)
            times.append(time.perf_counter() - began)
    return {"mbit": mbit, "bursts": times}


def connected(peer: str) -> socket.socket:
    while True:
        try:
            sock = socket.create_connection((peer, PORT))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return sock
        except ConnectionRefusedError:
            time.sleep(0.02)


def answer(server: socket.socket, burst: int, count: int) -> None:
    """Receive everything, then one byte back; then the same for every burst on a second connection."""
    with server.accept()[0] as peer:
        left = CHUNK
        while left:
            left -= peer.recv(CHUNK).count(1)
        peer.sendall(b"\1")
    with server.accept()[0] as peer:
        for _ in range(count):
            left = burst
            while left:
                left -= len(peer.recv(min(CHUNK, left)))
            peer.sendall(b"\1")


def main() -> None:
    kind, arguments = sys.argv[1], json.loads(sys.argv[2])
    result: dict[str, Any] = steps(**arguments) if kind == "steps" else tcp(**arguments)
    if os.environ["RANK"] == "0":
        print("@" + json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
