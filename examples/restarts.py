"""DDP that survives a killed rank: checkpoints every few steps, and torchrun restarts all ranks from the last one.

    export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
    torchrun --nproc-per-node 2 --max-restarts 3 examples/restarts.py --checkpoint /tmp/restarts-example

The variable gives every run its own store; without it gloo finds the addresses of the run before (torch 2.13). Every
rank saves its own residuals; rank 0 also the model and the optimizer. A checkpoint counts when all ranks have written
their part of it, so a rank killed while saving costs one interval and two steps are never mixed.

On a cluster the same training is started by Ray Train (examples/restarts_ray.py) or Slurm (examples/restarts.sbatch).
"""

from __future__ import annotations

import argparse
import os
import time
import zlib
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.demo.data import load


def write(folder: Path, name: str, state: dict[str, Any]) -> None:
    """Write the whole file or none: a file that exists can be read."""
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f"{name}.part"
    torch.save(state, partial)
    partial.rename(folder / name)


def newest(folder: Path, world: int) -> int:
    """The last step whose checkpoint is complete on every rank; 0 where there is none."""
    needed = ["shared.pt", *(f"rank{rank}.pt" for rank in range(world))]
    steps = [int(path.name) for path in folder.glob("*") if all((path / name).is_file() for name in needed)]
    last = torch.tensor([max(steps, default=0)])
    dist.all_reduce(last, dist.ReduceOp.MIN)
    return int(last)


def arguments(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--every", type=int, default=10, help="steps between checkpoints")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds after each step: time to kill a rank by hand")
    parser.add_argument("--level", default=None, help='such as "int8" or "topk:0.05+int8"; the default is "auto"')
    parser.add_argument("--checkpoint", type=Path, required=True, help="folder that every rank sees")
    return parser


def train(options: argparse.Namespace) -> None:
    """Train from the last complete checkpoint to `options.steps`, in the process group that exists."""
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    first = newest(options.checkpoint, world)
    here = options.checkpoint / str(first)
    if first:
        shared = torch.load(here / "shared.pt", weights_only=True)
        net.load_state_dict(shared["net"])
        optimizer.load_state_dict(shared["optimizer"])
    model = DistributedDataParallel(net)
    handle = gradwire.attach(model, options.level)
    if first:
        handle.load_state_dict(torch.load(here / f"rank{rank}.pt", weights_only=True))
    print(f"rank {rank} is process {os.getpid()}, from step {first}", flush=True)

    data = load("digits")
    images, labels = data.train_images[rank::world], data.train_labels[rank::world]
    for step in range(first, options.steps):
        optimizer.zero_grad()
        places = (torch.arange(16) + 16 * step) % len(images)
        F.cross_entropy(model(images[places]), labels[places]).backward()
        optimizer.step()
        weights = zlib.crc32(b"".join(parameter.detach().numpy().tobytes() for parameter in net.parameters()))
        print(f"rank {rank} step {step} weights {weights:08x}", flush=True)
        time.sleep(options.pause)
        if (step + 1) % options.every == 0:
            folder = options.checkpoint / str(step + 1)
            write(folder, f"rank{rank}.pt", handle.state_dict())
            if rank == 0:
                write(folder, "shared.pt", {"net": net.state_dict(), "optimizer": optimizer.state_dict()})

    accuracy = (net(data.test_images).argmax(1) == data.test_labels).float().mean().item()
    print(f"rank {rank} ends with accuracy {accuracy:.3f}", flush=True)
    handle.close()


def main() -> None:
    options = arguments(__doc__).parse_args()
    dist.init_process_group("gloo")
    train(options)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
