"""Inner state: makes the inner optimizer's state and the loss scaler's scale equal on all ranks.

With local steps every rank has its own momentum and its own scale. Before gradients are synchronised again (`detach`),
they must be equal, or replicas would differ from the next step on: the optimizer's tensors become their mean, the scale
rank 0's.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from gradwire.local_steps.buffer_average import BufferAverage
from gradwire.local_steps.weight_buckets import own_values
from gradwire.runtime.loss_scaling import Scaler

# The part of torch.amp.GradScaler's state that changes during training.
SCALE, TRACKER = "scale", "_growth_tracker"


def equalise_optimizer(optimizer: Optimizer, group: dist.ProcessGroup, timeout: float) -> None:
    """Every rank calls this at the same point."""
    mean = BufferAverage(_tensors(optimizer), group, timeout)
    mean.begin()
    mean.finish()


def equalise_scalers(scalers: Iterable[Scaler], group: dist.ProcessGroup) -> None:
    """Every rank calls this at the same point, with as many scalers."""
    device = dist.distributed_c10d._get_object_coll_device(group)
    for scaler in scalers:
        state = scaler.state_dict() if isinstance(scaler, torch.amp.GradScaler) else {}
        values = torch.tensor([state.get(SCALE, 1.0), state.get(TRACKER, 0)], dtype=torch.float64, device=device)
        dist.broadcast(values, dist.get_global_rank(group, 0), group=group)
        if isinstance(scaler, torch.amp.GradScaler) and state:
            scaler.load_state_dict({**state, SCALE: float(values[0]), TRACKER: int(values[1])})


def _tensors(optimizer: Optimizer) -> dict[str, Tensor]:
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    states = ((index, optimizer.state.get(one, {})) for index, one in enumerate(parameters))
    return {
        f"{index}.{key}": own_values(value)
        for index, state in states
        for key, value in sorted(state.items())
        if isinstance(value, Tensor)
    }
