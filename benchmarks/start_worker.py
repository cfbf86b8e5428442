"""One rank of benchmarks/start.py: builds a DDP model and reports how long it took until all ranks had."""

from __future__ import annotations

import hashlib
import json
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH = 256


def main() -> None:
    build, weights, mb = sys.argv[1], sys.argv[2], float(sys.argv[3])
    dist.init_process_group("gloo")
    torch.manual_seed(0 if weights == "equal" else dist.get_rank())
    net = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(round(mb * 1e6 / 4 / (WIDTH * WIDTH + WIDTH)))))
    dist.barrier()
    began = time.monotonic()
    if build == "sync":
        import gradwire

        gradwire.sync_weights(net)
        model = DistributedDataParallel(net, init_sync=False)
    else:
        model = DistributedDataParallel(net)
    dist.barrier()
    seconds = time.monotonic() - began
    digest = hashlib.sha256(torch.cat([one.detach().flatten() for one in net.parameters()]).numpy().tobytes())
    print("START " + json.dumps({"seconds": seconds, "digest": digest.hexdigest()}), flush=True)
    del model
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
