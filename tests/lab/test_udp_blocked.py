"""Hosts whose UDP is blocked: the job warns once and trains over TCP, in a real network."""

from __future__ import annotations

import sys
from pathlib import Path

from gradwire.lab import Lab
from gradwire.network import preset

TRAIN = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

torch.manual_seed(0)
dist.init_process_group("gloo")
net = torch.nn.Linear(300, 300)
model = DistributedDataParallel(net)
generator = torch.Generator().manual_seed(dist.get_rank())
for _ in range(4):
    model(torch.randn(8, 300, generator=generator)).square().mean().backward()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter -= 0.01 * parameter.grad
flat = torch.cat([p.detach().flatten() for p in net.parameters()])
first = flat.clone()
dist.broadcast(first, 0)
print("equal", torch.equal(flat, first), flush=True)
"""


def test_a_job_without_udp_trains_over_tcp_and_says_so_once(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    settings = "GRADWIRE_TRANSPORT=ltp GRADWIRE_TRANSPORT_CONNECT=2 GRADWIRE_LEVEL=int8"
    job = f"ip rule add ipproto udp blackhole && exec env {settings} {sys.executable} -m gradwire.run {script}"
    with Lab(preset("lan100", 2)) as lab:
        first, second = (host.output for host in lab.run(["sh", "-c", job], timeout=90).hosts)
    assert "equal True" in first
    assert "equal True" in second
    assert first.count("LTP over UDP is not possible here, so gradients go over TCP instead") == 1
    assert "not possible" not in second
    # Two hosts and no secret given: rank 0 says how to give one.
    assert first.count("openssl rand -hex 32") == 1
    assert "openssl" not in second
