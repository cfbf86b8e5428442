"""Over LTP the View is what acknowledgements say: of a network whose rate, delay and loss are known."""

from __future__ import annotations

import sys

import pytest

from gradwire.emulate import Lab
from gradwire.link import LinkSpec, Network
from gradwire.link.network import as_hosts, both
from gradwire.units import Rate, Seconds

TRAIN = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import gradwire
from gradwire.events import Sensed

torch.manual_seed(0)
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(700, 700))
handle = gradwire.attach(model, {"level": "netsense", "transport": {"kind": "ltp"}})
seen = []
handle.add_sink(lambda event: seen.append(event) if isinstance(event, Sensed) else None)
for step in range(10):
    model(torch.randn(4, 700)).square().mean().backward()
if dist.get_rank() == 0:
    last = seen[-1]
    print("view", last.rtprop, last.bandwidth, last.loss, flush=True)
handle.close()
"""


def test_the_view_of_a_known_network() -> None:
    there = LinkSpec(Rate.from_mbit(50), Seconds(0.01), loss=0.01)
    network = Network("pair", as_hosts("ab"), both("a", "b", there, there), seed=3)
    with Lab(network) as lab:
        first, _ = lab.run([sys.executable, "-c", TRAIN], timeout=90).hosts
    rtprop, bandwidth, loss = (float(word) for word in first.output.split("view ")[1].split()[:3])
    assert rtprop == pytest.approx(0.02, abs=0.004)
    # 50 Mbit/s is 6.25 MB/s; every exchange ends with packets lost and sent again, while nothing else moves.
    assert 0.4 * 6.25e6 < bandwidth < 1.1 * 6.25e6
    assert 0.001 < loss < 0.04
