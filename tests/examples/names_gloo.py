"""A script that asks for gloo; `-m gradwire.run` with GRADWIRE_BACKEND=gradwire makes a gradwire group instead."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
tensor = torch.ones(5)
dist.all_reduce(tensor)
assert (tensor == dist.get_world_size()).all()
if dist.get_rank() == 0:
    print("backend", dist.get_backend())
dist.destroy_process_group()
