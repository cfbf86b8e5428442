"""Local steps with ranks that come and go: each rank is started alone, and joins the job that runs.

    gradwire store --host 127.0.0.1 --port 29400 &
    export GRADWIRE_STORE=127.0.0.1:29400
    RANK=0 WORLD_SIZE=2 python examples/grow.py &
    RANK=1 WORLD_SIZE=2 python examples/grow.py &
    GRADWIRE_REJOIN=any python examples/grow.py      one more, at any time; it may be stopped again

The job ends at its last step, for all ranks together.
"""

from __future__ import annotations

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.demo.data import load
from gradwire.events import Event, OuterStepped


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--sync-every", type=int, default=20)
    parser.add_argument("--max-ranks", type=int, default=8)
    parser.add_argument("--step-seconds", type=float, default=0.05, help="a step takes at least this long")
    options = parser.parse_args()

    gradwire.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    model = DistributedDataParallel(net, broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    planning = {"elastic": True, "max_ranks": options.max_ranks}
    settings = {"level": "int8", "plan": "loadaware", "planning": planning}
    handle = gradwire.attach(model, settings, optimizer=optimizer, sync_every=options.sync_every)

    seen: list[tuple[int, ...]] = []

    def show(event: Event) -> None:
        if isinstance(event, OuterStepped) and event.ranks not in seen[-1:]:
            seen.append(event.ranks)
            print(f"rank {rank}: round {event.step} is the mean of ranks {list(event.ranks)}", flush=True)

    handle.add_sink(show)
    handle.hand_over(optimizer)  # a rank that joins waits here for the end of a round
    print(f"rank {rank} trains from step {handle.step} on", flush=True)

    data = load("digits")
    # The number of ranks changes, so each draws from all data, with a seed of its own.
    generator = torch.Generator().manual_seed(1000 + rank)
    while handle.step < options.steps:  # the step of the job, also in a rank that joined
        begun = time.monotonic()
        places = torch.randint(len(data.train_images), (32,), generator=generator)
        optimizer.zero_grad()
        F.cross_entropy(model(data.train_images[places]), data.train_labels[places]).backward()
        optimizer.step()
        time.sleep(max(0.0, begun + options.step_seconds - time.monotonic()))

    handle.synchronise()
    with torch.no_grad():
        right = (net(data.test_images).argmax(1) == data.test_labels).float().mean()
    print(f"rank {rank}: {handle.step} steps, accuracy {right:.3f}", flush=True)
    handle.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
