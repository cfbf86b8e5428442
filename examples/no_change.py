"""An ordinary DDP script without any reference to gradwire. These commands train it with gradwire:

torchrun --nproc-per-node 2 -m gradwire.run examples/no_change.py --steps 40
GRADWIRE_LEVEL=int8 torchrun --nproc-per-node 2 -m gradwire.run examples/no_change.py
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(40, 256), nn.ReLU(), nn.Linear(256, 5))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    dist.init_process_group("gloo")  # after the optimizer, whose modules would keep the group alive
    model = DistributedDataParallel(net)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(options.steps):
        inputs = torch.randn(32, 40, generator=generator)
        loss = F.cross_entropy(model(inputs), inputs[:, :5].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.3f} after {options.steps} steps")
    del model  # it references the group, and a thread of the group that outlives Python aborts the process
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
