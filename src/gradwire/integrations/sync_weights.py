"""Sync weights: `sync_weights(model)` gives every rank rank 0's weights, and sends only what differs.

result = gradwire.sync_weights(net)                        # on every rank, before DDP
model = DistributedDataParallel(net, init_sync=False)      # which would send everything to everybody

1. torch compares the shapes of trained parameters, as in DDP's constructor; a lost rank is noticed here
2. ranks compare digests of their parameters and buffers (transport/bootstrap/weight_check.py)
3. where all are equal, nothing is sent; otherwise rank 0's values of the tensors that differ go along a chain of
   the ranks that need them (transport/chain_send.py), and those ranks compare digests again
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.utils import _sync_params_and_buffers, _verify_param_shape_across_processes
from torch.nn.parallel import DistributedDataParallel

from gradwire.config import resolve
from gradwire.errors import ConfigError, IntegrityError, LinkError
from gradwire.integrations.transfer_progress import TransferProgress
from gradwire.integrations.weight_tensors import WeightTensors
from gradwire.observe.event_bus import host_name
from gradwire.sites.topology import VARIABLE as SITE
from gradwire.transport.bootstrap.store_exchange import StoreExchange
from gradwire.transport.bootstrap.weight_check import WeightDifference, compare_weights
from gradwire.transport.chain_send import send_along_chain
from gradwire.transport.lanes.open_lanes import BY_SENDS, HOST
from gradwire.units import Bytes, Seconds

# As much as DDP broadcasts at once.
_BROADCAST_BYTES: Final = 250 * 1024 * 1024
# Seconds to wait for the other ranks' digests after torch's comparison has failed: they are as far, or lost.
_AFTER_FAILURE: Final = 30.0


@dataclass(frozen=True, slots=True)
class WeightSync:
    """What `sync_weights` did: the same on every rank, except `seconds`.

    `sent` are bytes of rank 0's weights that other ranks did not have, out of `total`; `receivers` are those ranks.
    """

    total: Bytes
    sent: Bytes
    receivers: tuple[int, ...]
    seconds: Seconds

    @property
    def equal(self) -> bool:
        """Whether all ranks held the same weights already."""
        return not self.receivers

    def __str__(self) -> str:
        if self.equal:
            return f"all ranks hold the same weights ({self.total}): nothing was sent"
        return f"{self.sent} of {self.total} sent from rank 0 to {ranks_text(self.receivers)} in {self.seconds}"


def sync_weights(model: nn.Module, group: dist.ProcessGroup | None = None, *, buffers: bool = True) -> WeightSync:
    """Give every rank of the group rank 0's parameters and buffers, and send only what differs.

    Every rank calls it at the same point, usually before `DistributedDataParallel(model, init_sync=False)`. Ranks
    compare SHA-256 digests first; where all hold the same weights (built from the same seed, or loaded from the same
    file), nothing is sent. Otherwise the tensors that differ are sent along a chain of ranks, so that no uplink carries
    them twice. Ranks whose models have other names, types or shapes get a ConfigError, all of them. `group` is the
    default group if it is not given. With `buffers=False` buffers stay as they are, and so do tensors that the module
    tells DDP to ignore.
    """
    if isinstance(model, DistributedDataParallel):
        group = model.process_group if group is None else group
        model = model.module
    if not isinstance(model, nn.Module):
        raise ConfigError(f"sync_weights: {type(model).__name__} is not a torch module; pass the model itself")
    if not dist.is_initialized():
        raise ConfigError("sync_weights: there is no process group; call torch.distributed.init_process_group first")
    group = group or dist.distributed_c10d._get_default_group()
    return sync_tensors(WeightTensors(model, buffers), group)


def sync_tensors(weights: WeightTensors, group: dist.ProcessGroup) -> WeightSync:
    """Do so for these tensors. Every rank of the group calls this."""
    began = time.monotonic()
    if not weights.readable:
        raise ConfigError(
            "sync_weights: the model has tensors that are sparse, sharded or without memory; let DDP send them "
            "(init_sync=True)"
        )
    difference = _compare(weights, group) if group.size() > 1 else WeightDifference((), (), by_sends=True)
    tensors = [weights.tensors[place] for place in difference.tensors]
    sent = Bytes(sum(tensor.numel() * tensor.element_size() for tensor in tensors))
    if tensors:
        _send(tensors, difference, group, sent)  # 3
        _check_received(weights, difference, group)
    seconds = Seconds(time.monotonic() - began)
    return WeightSync(Bytes(weights.nbytes), sent, tuple(sorted(difference.receivers)), seconds)


def sends_host_memory(group: dist.ProcessGroup) -> bool:
    """Whether the group has direct sends of CPU tensors."""
    if dist.get_backend(group) in BY_SENDS:
        return True
    return HOST in group._device_types and group._get_backend(HOST).name() in BY_SENDS


def ranks_text(ranks: tuple[int, ...]) -> str:
    """Such as "rank 2" or "ranks 1, 2"; of many, how many."""
    if len(ranks) > 8:
        return f"{len(ranks)} ranks"
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, sorted(ranks)))}"


def _compare(weights: WeightTensors, group: dist.ProcessGroup) -> WeightDifference:
    """What differs. ConfigError on every rank for different models: torch raises it on the ranks that differ from rank
    0 only, so those go on to the second comparison, in which every rank learns about it."""
    manifest, timeout, failure = weights.manifest(), resolve().transport.timeout, None
    try:
        _verify_param_shape_across_processes(group, weights.trained or [torch.zeros(0)])  # 1
    except RuntimeError as error:
        timeout, failure = min(timeout, _AFTER_FAILURE), error
    try:
        exchange = StoreExchange.for_group(group, "weights", timeout)
        place = os.environ.get(SITE, ""), host_name()
        difference = compare_weights(exchange, manifest, place, by_sends=sends_host_memory(group))  # 2
    except LinkError as error:
        raise failure or error from error
    if failure is not None:
        raise failure
    return difference


def _send(tensors: list[Tensor], difference: WeightDifference, group: dist.ProcessGroup, total: Bytes) -> None:
    if not difference.by_sends:
        with torch.no_grad():
            _sync_params_and_buffers(group, tensors, _BROADCAST_BYTES, 0)
        return
    chain = (0, *difference.receivers)
    if group.rank() in chain:
        to = ranks_text(difference.receivers)
        progress = TransferProgress(f"rank 0's weights to {to}", total, shown=group.rank() == 0)
        send_along_chain(group, chain, tensors, progress.update)
        progress.finish()


def _check_received(weights: WeightTensors, difference: WeightDifference, group: dist.ProcessGroup) -> None:
    if group.rank() in difference.receivers and weights.manifest().content != difference.content:
        raise IntegrityError("weights: what arrived differs from rank 0's weights; start the job again")
