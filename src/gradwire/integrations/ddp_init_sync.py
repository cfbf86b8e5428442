"""DDP init sync: what DDP's constructor synchronises, by `sync_weights` instead of its broadcast of everything.

In: a call of DDP's constructor, before it runs. Out: the same call, with `init_sync=False` where the weights are
synchronised already. DDP's comparison of shapes, which `init_sync=False` leaves out too, is a part of `sync_weights`.

Left to DDP as it is: `init_sync=False` of the caller, groups without direct sends of CPU tensors, models that are not
in host memory, device meshes, delayed reductions, a process that rejoins a running job.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from gradwire.integrations.sync_weights import sends_host_memory, sync_tensors
from gradwire.integrations.weight_tensors import WeightTensors

Constructor = Callable[..., None]
# Arguments that change what DDP synchronises, or when.
_OWN_RULES = ("device_mesh", "delay_all_reduce_named_params")


def construct_synchronised(original: Constructor, model: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
    """Run DDP's constructor on `model`; its parameters and buffers end with the values that DDP alone would give."""
    call = _bound(original, model, *args, **kwargs)
    weights = _weights(call.arguments) if call is not None else None
    if call is None or weights is None:
        original(model, *args, **kwargs)
        return
    sync_tensors(weights, _group(call.arguments))
    call.arguments["init_sync"] = False
    original(*call.args, **call.kwargs)


def _bound(original: Constructor, *args: Any, **kwargs: Any) -> inspect.BoundArguments | None:
    """The call with its defaults; None where this torch has no `init_sync`, or the call is wrong: DDP says how."""
    signature = inspect.signature(original)
    if "init_sync" not in signature.parameters:
        return None
    try:
        return signature.bind(*args, **kwargs)
    except TypeError:
        return None


def _weights(arguments: dict[str, Any]) -> WeightTensors | None:
    """What to synchronise; None where that is left to DDP."""
    module = arguments.get("module")
    if not arguments.get("init_sync", True) or not isinstance(module, nn.Module):
        return None
    if any(arguments.get(name) is not None for name in _OWN_RULES) or not _group_sends(arguments):
        return None
    if any(is_lazy(tensor) for tensor in (*module.parameters(), *module.buffers())):
        return None
    weights = WeightTensors(module, _with_buffers(arguments))
    return weights if weights.trained and weights.readable and weights.on_host else None


def _with_buffers(arguments: dict[str, Any]) -> bool:
    """As DDP: the older argument decides about buffers at the start, unless the newer one is given."""
    given = arguments.get("broadcast_buffers")
    return arguments.get("forward_sync_buffers") is not None or given is None or bool(given)


def _group(arguments: dict[str, Any]) -> dist.ProcessGroup:
    group: dist.ProcessGroup = arguments.get("process_group") or dist.distributed_c10d._get_default_group()
    return group


def _group_sends(arguments: dict[str, Any]) -> bool:
    try:
        group = _group(arguments)
        return group.size() > 1 and sends_host_memory(group)
    except (ValueError, RuntimeError):
        return False  # no group, or one that torch does not know
