"""HSDP with gradwire: FSDP2 inside a site, gradwire between sites. Runs on CPU.

    torchrun --nproc-per-node 4 examples/hsdp.py            two sites of two ranks
    torchrun --nproc-per-node 2 examples/hsdp.py            two sites of one rank
    torchrun --nproc-per-node 4 examples/hsdp.py --sync-every 10        sites train alone for 10 steps at a time

Each rank holds its shard of the model; per step it sends the gradient of that shard, compressed, to the rank that holds
the same shard at the other site.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

import gradwire
from gradwire.demo.data import load


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--sites", type=int, default=2)
    parser.add_argument("--level", default=None, help='such as "int8" or "topk:0.01+int8"; the default is "auto"')
    parser.add_argument("--sync-every", type=int, default=None, help="local steps: send weights every so many steps")
    options = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    # The ranks of a site are neighbours: 0 and 1 at the first, 2 and 3 at the second.
    mesh = init_device_mesh("cpu", (options.sites, world // options.sites), mesh_dim_names=("replicate", "shard"))

    torch.manual_seed(0)  # HSDP requires that all replicas start with the same weights
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    handle = gradwire.attach(net, options.level, optimizer=optimizer, sync_every=options.sync_every)  # the line to add

    data = load("digits")
    images, labels = data.train_images[rank::world], data.train_labels[rank::world]
    for step in range(options.steps):
        places = (torch.arange(32) + 32 * step) % len(images)
        optimizer.zero_grad()
        F.cross_entropy(net(images[places]), labels[places]).backward()
        optimizer.step()

    handle.synchronise()  # ends the last round of local steps
    right = (net(data.test_images).argmax(1) == data.test_labels).float().mean()  # a forward pass needs every rank
    if rank == 0:
        print(f"{mesh.size(0)} sites of {mesh.size(1)}, accuracy {right:.3f}")
        print(handle.summary())
    handle.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
