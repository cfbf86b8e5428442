"""FSDP2 and torch.distributed.checkpoint: train sharded, save, load into a fresh model, compare.

torchrun --nproc-per-node 2 tests/examples/sharded.py FOLDER
"""

import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.fsdp import fully_shard


def make(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
    for layer in (model[0], model[2]):
        fully_shard(layer)
    fully_shard(model)
    return model


dist.init_process_group("gradwire")
model = make(0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs = torch.randn(8, 16, generator=torch.Generator().manual_seed(dist.get_rank()))
first = last = 0.0
for step in range(10):
    loss = model(inputs).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    first, last = (loss.item() if step == 0 else first), loss.item()
assert last < first
dcp.save(get_model_state_dict(model), checkpoint_id=sys.argv[1])
other = make(1)
state = get_model_state_dict(other)
dcp.load(state, checkpoint_id=sys.argv[1])
set_model_state_dict(other, state)
assert torch.equal(other(inputs), model(inputs))
if dist.get_rank() == 0:
    print("saved and loaded")
dist.destroy_process_group()
