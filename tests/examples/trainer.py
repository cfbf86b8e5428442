"""A typical DDP trainer: gradient accumulation, bfloat16 autocast, DistributedSampler.

torchrun --nproc-per-node 2 tests/examples/trainer.py BACKEND
"""

import gc
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 16), torch.randint(0, 4, (96,)))
net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
# Made before the group: torch's first optimizer loads modules whose functions would keep the group as a default.
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
dist.init_process_group(sys.argv[1])
sampler: DistributedSampler[object] = DistributedSampler(data, seed=3)
model = DistributedDataParallel(net)
losses = []
for epoch in range(3):
    sampler.set_epoch(epoch)
    for step, (inputs, labels) in enumerate(DataLoader(data, batch_size=8, sampler=sampler)):
        last = step % 2 == 1
        with torch.autocast("cpu", torch.bfloat16), model.no_sync() if not last else torch.enable_grad():
            loss = nn.functional.cross_entropy(model(inputs), labels) / 2
            loss.backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
    total = loss.detach().clone()
    dist.all_reduce(total)
    losses.append(total.item())
weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
everyone = [torch.empty_like(weights) for _ in range(dist.get_world_size())]
dist.all_gather(everyone, weights)
assert all(torch.equal(weights, other) for other in everyone)
if dist.get_rank() == 0:
    print(f"weights {weights.double().sum().item():.6f}")
del model
gc.collect()  # a reference to the group keeps gloo's threads alive, and one that outlives Python aborts the process
dist.destroy_process_group()
