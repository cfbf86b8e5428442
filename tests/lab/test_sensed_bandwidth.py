"""Over gloo the View knows the network from the kernel's sockets and from steps: right, or a true lower bound."""

from __future__ import annotations

import sys

import pytest

from gradwire.lab import Lab
from gradwire.network import LinkSpec, Network, preset
from gradwire.network.network import as_hosts, both
from gradwire.units import Rate, Seconds
from tests.trials import Trial, decide

TRAIN = """
import sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import gradwire
from gradwire.events import Sensed

torch.manual_seed(0)
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(900, 900))
handle = gradwire.attach(model, {"level": "dc2", "transport": {"kind": "group"}})
seen = []
handle.add_sink(lambda event: seen.append(event) if isinstance(event, Sensed) else None)
for step in range(26):
    time.sleep(0.1)
    model(torch.randn(4, 900)).square().mean().backward()
handle.close()
# A saturating transfer: rank 1 says when all has arrived.
rank = dist.get_rank()
data, arrived = torch.zeros(int(sys.argv[1]), dtype=torch.uint8), torch.zeros(1)
rates = []
for turn in range(2):
    dist.barrier()
    began = time.monotonic()
    dist.recv(data, 0) if rank else dist.send(data, 1)
    dist.send(arrived, 0) if rank else dist.recv(arrived, 1)
    rates.append(data.numel() / (time.monotonic() - began))
if rank == 0:
    late = seen[20:]
    for event in late:
        print("view", event.bandwidth or 0.0, event.floor, event.rtprop, flush=True)
    print("saturating", max(rates), flush=True)
"""
# As on Wi-Fi.
LOSSY = LinkSpec(Rate.from_mbit(100), Seconds(0.005), loss=0.014)


@pytest.mark.parametrize(
    ("network", "nbytes", "trip"),
    [
        (preset("lan100", 2), 25_000_000, None),
        (preset("wan-us-eu", 2), 20_000_000, 0.08),
        (Network("lossy", as_hosts("ab"), both("a", "b", LOSSY, LOSSY), seed=3), 2_000_000, 0.01),
    ],
    ids=["lan100", "wan-us-eu", "lossy"],
)
def test_what_is_believed_of_a_network(network: Network, nbytes: int, trip: float | None) -> None:
    link = max(float(link.spec.rate) for link in network.links)

    def trial(run: Trial) -> None:
        with Lab(network) as lab:
            result = lab.run([sys.executable, "-c", TRAIN, str(nbytes)], timeout=120)
        run.saw(result.stats)
        lines = [line.split() for line in result.hosts[0].output.splitlines()]
        views = [tuple(map(float, line[1:])) for line in lines if line and line[0] == "view"]
        saturating = next(float(line[1]) for line in lines if line and line[0] == "saturating")
        print(f"{network.name}: a saturating transfer gets {Rate(saturating)}")
        for bandwidth, floor, rtprop in views:
            print(f"believed {Rate(bandwidth) if bandwidth else 'nothing'}, at least {Rate(floor)}, {Seconds(rtprop)}")
        assert views
        # On a lossy path transfers of a step's size get less or more than long ones, by chance.
        lossy = network.name == "lossy"
        least, most = (0.0, link) if lossy else (0.7 * min(saturating, link), min(link, 1.3 * saturating))
        right = [
            floor <= 1.1 * most and (bandwidth == 0 or least <= bandwidth <= 1.1 * most)
            for bandwidth, floor, _ in views
        ]
        assert sum(right) >= 0.9 * len(right)
        if trip is not None:
            assert all(abs(rtprop - trip) < 0.25 * trip for _, _, rtprop in views)

    decide(trial)
