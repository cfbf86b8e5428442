"""Over LTP the View has the values of acknowledgements, on a network with known rate, delay and loss."""

from __future__ import annotations

import sys

from gradwire.lab import Lab
from gradwire.network import LinkSpec, Network
from gradwire.network.network import as_hosts, both
from gradwire.units import Bytes, Rate, Seconds
from tests.trials import Trial, decide

TRAIN = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import gradwire
from gradwire.events import Sensed

torch.manual_seed(0)
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(1500, 1500))
handle = gradwire.attach(model, {"level": "netsense", "transport": {"kind": "ltp"}})
seen = []
handle.add_sink(lambda event: seen.append(event) if isinstance(event, Sensed) else None)
for step in range(16):
    model(torch.randn(4, 1500)).square().mean().backward()
if dist.get_rank() == 0:
    last = seen[-1]
    print("view", last.rtprop, last.best, last.loss, flush=True)
handle.close()
"""


# The queue holds all of a step: what is lost is lost at random, not to a sender that first looks for the rate.
THERE = LinkSpec(Rate.from_mbit(50), Seconds(0.01), loss=0.01, queue=Bytes(4 << 20))


def test_the_view_of_a_known_network() -> None:
    network = Network("pair", as_hosts("ab"), both("a", "b", THERE, THERE), seed=3)

    def trial(run: Trial) -> None:
        with Lab(network) as lab:
            result = lab.run([sys.executable, "-c", TRAIN], timeout=90)
        run.saw(result.stats)
        rtprop, bandwidth, loss = (float(word) for word in result.hosts[0].output.split("view ")[1].split()[:3])
        dropped = max((link.loss_drops + link.queue_drops) / link.offered for link in result.stats.links)
        assert abs(rtprop - 0.02) < 0.004
        # 50 Mbit/s is 6.25 MB/s; an exchange of little ends with packets lost and sent again, while nothing else moves.
        assert 0.25 * 6.25e6 < bandwidth < 1.1 * 6.25e6
        # Loss is that of the last few hundred packets, the lab's is that of all.
        assert 0.1 * dropped < loss < 4 * dropped

    decide(trial)
