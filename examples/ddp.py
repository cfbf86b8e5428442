"""DDP with gradwire: the lines to add, with gradient accumulation and a checkpoint.

    torchrun --nproc-per-node 2 examples/ddp.py --steps 40 --checkpoint /tmp/ddp-example

Run it again with more steps: it resumes where it stopped, with the residuals that were not sent yet.
"""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.demo.data import load

MICRO_BATCHES = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--level", default=None, help='such as "int8" or "topk:0.01+int8"; the default is "auto"')
    parser.add_argument("--checkpoint", type=Path, default=None, help="folder; one file per rank")
    options = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))

    model = DistributedDataParallel(net)
    handle = gradwire.attach(model, options.level)  # the line to add

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first = 0
    file = options.checkpoint / f"rank{rank}.pt" if options.checkpoint else None
    if file and file.exists():
        saved = torch.load(file, weights_only=True)
        net.load_state_dict(saved["net"])
        optimizer.load_state_dict(saved["optimizer"])
        handle.load_state_dict(saved["gradwire"])  # this rank's own residuals: gradient that was not sent yet
        first = saved["step"]

    data = load("digits")
    images, labels = data.train_images[rank::world], data.train_labels[rank::world]
    for step in range(first, options.steps):
        optimizer.zero_grad()
        for micro in range(MICRO_BATCHES):
            places = torch.arange(16) + 16 * (MICRO_BATCHES * step + micro)
            inputs, targets = images[places % len(images)], labels[places % len(images)]
            last = micro == MICRO_BATCHES - 1
            with contextlib.nullcontext() if last else model.no_sync():  # only the last micro-batch synchronises
                loss = F.cross_entropy(model(inputs), targets) / MICRO_BATCHES
                loss.backward()
        handle.note(loss.item())  # optional: lets the accuracy guard detect that compression harms training
        optimizer.step()

    if file:
        file.parent.mkdir(parents=True, exist_ok=True)
        state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "gradwire": handle.state_dict()}
        torch.save({**state, "step": options.steps}, file)
    if rank == 0:
        right = (net(data.test_images).argmax(1) == data.test_labels).float().mean()
        print(f"steps {first} to {options.steps}, accuracy {right:.3f}")
        print(handle.summary())
    handle.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
