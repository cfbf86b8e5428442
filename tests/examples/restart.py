"""A rank dies in the first run; torchrun restarts all ranks, and the second run completes.

torchrun --nproc-per-node 2 --max-restarts 1 tests/examples/restart.py
"""

import os

import torch
import torch.distributed as dist

dist.init_process_group("gradwire")
tensor = torch.ones(1000)
dist.all_reduce(tensor)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and dist.get_rank() == 1:
    os._exit(3)
dist.all_reduce(tensor)
assert (tensor == 4).all()
if dist.get_rank() == 0:
    print(f"completed after {os.environ['TORCHELASTIC_RESTART_COUNT']} restart")
dist.destroy_process_group()
