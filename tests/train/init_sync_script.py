"""An ordinary DDP script without any reference to gradwire.

It builds one model from equal seeds and one from different ones, and prints a digest of each rank's weights.
"""

from __future__ import annotations

import hashlib
import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


def built(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(20, 300), nn.BatchNorm1d(300), nn.Linear(300, 5))


def digest(net: nn.Module) -> str:
    flat: list[Tensor] = [one.float().flatten() for one in net.state_dict().values()]
    return hashlib.sha256(torch.cat(flat).numpy().tobytes()).hexdigest()[:16]


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    same, other = built(7), built(rank)
    models = [DistributedDataParallel(same), DistributedDataParallel(other)]
    # One write: the ranks share a pipe.
    sys.stdout.write(f"same {digest(same)}\nother {digest(other)}\n")
    sys.stdout.flush()
    models[0](torch.randn(4, 20)).sum().backward()
    del models
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
