"""FSDP2 integration: `attach_fsdp(model)` synchronises the replicate dimension of an HSDP model.

    mesh = init_device_mesh("cpu", (sites, ranks_per_site), mesh_dim_names=("replicate", "shard"))
    fully_shard(model, mesh=mesh)              # as before: FSDP2 on a two-dimensional mesh
    handle = gradwire.attach_fsdp(model)
    ... train as before ...

Inside a site FSDP2 gathers parameters and reduce-scatters gradients as before. Each rank then holds the site's mean of
its shard. A session over the replicate group, instead of torch's all-reduce, synchronises it with the ranks that hold
the same shard at other sites. In: the flat reduced shard of one FSDP unit, its parameters side by side, each padded to
the shard size. Out: the same buffer with the mean over sites.

FSDP2 makes the gradients views of that buffer. Where nothing else reads it in backward (`FsdpUnit.views_only`), the
hook returns at once and communication overlaps with backward; the end of backward waits. `off` does the operation that
HSDP does. As with DDP the hook cannot be removed; `handle.detach()` switches to plain averages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.futures import Future

from gradwire.config import Config
from gradwire.errors import ConfigError, LinkError
from gradwire.integrations.arguments import check_fragments_used
from gradwire.integrations.ddp import given
from gradwire.integrations.fsdp_unit import FsdpUnit, after_backward, units_of
from gradwire.integrations.handle import Handle, close_with
from gradwire.integrations.scaler_search import ScalerSearch
from gradwire.runtime.builder import BuiltSession, build
from gradwire.runtime.plain_path import hsdp_all_reduce
from gradwire.runtime.session import Session
from gradwire.transport.lanes.collectives import explain
from gradwire.types import Bucket

_ATTACHED: WeakKeyDictionary[nn.Module, Handle] = WeakKeyDictionary()


class ShardHandle(Handle):
    """A handle whose state belongs to one shard of the model; it loads where the model has as many shards."""

    def __init__(self, built: BuiltSession, config: Config, shard: tuple[int, int]) -> None:
        super().__init__(built, config)
        self._shard = shard

    def state_dict(self) -> dict[str, Any]:
        """This rank's residuals and warm starts. Every rank saves its own."""
        return {**super().state_dict(), "shard": list(self._shard)}

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Load this rank's own state or, when the number of replicas changed, a list with those of its shard."""
        super().load_state_dict(state)

    def _facts_to_load(self, states: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        return {"the shard of the state to load": ", ".join(sorted({_shard_name(_shard_of(one)) for one in states}))}

    def _check_to_load(self, states: Sequence[Mapping[str, Any]]) -> None:
        super()._check_to_load(states)
        for one in states:
            if _shard_of(one) != self._shard:
                raise ConfigError(
                    f"load_state_dict: the state belongs to shard {_shard_name(_shard_of(one))}, this rank holds shard "
                    f"{_shard_name(self._shard)}; load each shard's own state, with as many shards as saved"
                )


def _shard_of(state: Mapping[str, Any]) -> tuple[int, int]:
    index, count = state.get("shard", (0, 1))
    return int(index), int(count)


def _shard_name(shard: tuple[int, int]) -> str:
    return f"{shard[0]} of {shard[1]}"


class _FsdpHook:
    """Turns reduced shards into Buckets, passes them to the session, counts buckets and steps.

    The buckets of a backward are numbered in the order in which units call, which is the same on all replicas.
    """

    def __init__(self, session: Session, replicas: int) -> None:
        self._session = session
        self._replicas = replicas
        self._buckets = 0
        self._partial: dict[FsdpUnit, Tensor] = {}
        self._in_flight: list[Future[Tensor]] = []

    def __call__(self, unit: FsdpUnit, buffer: Tensor) -> None:
        if not self._synchronises_now(unit, buffer):
            return
        if unit.divides_itself:
            buffer.mul_(self._replicas)  # the user's divisor expects the sum over replicas; a session gives the mean
        slices, weights = unit.layout(buffer.numel())
        bucket = Bucket(self._buckets, self._session.step, buffer.numel(), buffer.element_size(), slices, is_last=False)
        self._buckets += 1
        _synchronise_device(buffer.device)
        self._in_flight.append(self._session.synchronise(bucket, buffer, weights))
        if not unit.views_only(buffer):
            self._settle()
            _synchronise_device(buffer.device)

    def _synchronises_now(self, unit: FsdpUnit, buffer: Tensor) -> bool:
        """After `set_requires_all_reduce(False)` the site's mean is kept, and added to the unit's next one."""
        kept = self._partial.pop(unit, None)
        if kept is not None:
            buffer.add_(kept)
        if unit.requires_all_reduce:
            return True
        self._partial[unit] = buffer.clone()
        buffer.zero_()
        return False

    def end_of_backward(self) -> None:
        """End the step; a backward in which no unit was synchronised is no step."""
        if not self._buckets:
            return
        self._buckets = 0
        self._session.step += 1
        self._settle()

    def _settle(self) -> None:
        """Wait for the buckets in flight; a session's errors keep their type."""
        futures, self._in_flight = self._in_flight, []
        self._session.settle()
        for future in futures:
            try:
                future.wait()
            except RuntimeError as error:
                raise LinkError(explain(error, "AllReduce")) from error


def attach_fsdp(
    model: nn.Module,
    config: Config | str | Path | Mapping[str, Any] | None = None,
    *,
    record: str | Path | None = None,
    level: str | None = None,
    lossiest: str | None = None,
) -> Handle:
    """Let gradwire synchronise this model's gradients across the replicate dimension of its mesh.

    The model is wrapped by `fully_shard` on a mesh of (replicate, shard), or by `replicate` on one of (replicate,).
    Every rank calls it at the same point, before the first backward. A second call without a configuration returns the
    same handle. `level` and `lossiest` are those of `attach`.
    """
    known = _ATTACHED.get(model)
    if known is not None and (config, record, level, lossiest) == (None,) * 4:
        return known
    if known is not None:
        raise ConfigError(
            "attach_fsdp: gradwire is attached to this model already, and a model takes one configuration; call "
            "attach_fsdp(model) without one to get its handle"
        )
    effective = given(config, level, record, lossiest)
    _check_supported(model, effective)
    units = units_of(model)
    group = _replicate_group(units)
    parameters = sum(unit.numel for unit in units)
    # Every shard's group would open a wire of its own: the transport stays the group's unless one is configured.
    built = build(effective, group, parameters, hsdp_all_reduce(group), on_cpu=False)
    if units[0].shard_group is not None:
        built.session.scaling.any_shard = _any_shard(units[0].shard_group)
    hook = _FsdpHook(built.session, group.size())
    for unit in units:
        unit.set_hook(hook)
    after_backward(model, hook.end_of_backward)
    ScalerSearch(model, built.session.scaling)
    handle = _ATTACHED[model] = ShardHandle(built, effective, units[0].shard)
    close_with(model, handle)
    return handle


def _check_supported(model: nn.Module, config: Config) -> None:
    if not isinstance(model, FSDPModule):
        raise ConfigError(
            f"attach_fsdp: {type(model).__name__} is not wrapped by FSDP2; wrap it first: "
            "fully_shard(model, mesh=mesh) with a mesh of (replicate, shard). "
            "For a DistributedDataParallel model use gradwire.attach"
        )
    if config.plan:
        raise ConfigError(
            f"plan: {config.plan!r} cannot be used with FSDP2, which does not show which unit is a backward's last; "
            "leave plan (GRADWIRE_PLAN) empty for attach_fsdp"
        )
    if config.local_steps:
        name = config.local_steps.partition(":")[0]
        raise ConfigError(
            f"{config.local_steps} cannot be used with FSDP2: each rank has a part of the weights only; "
            f"leave {name} (GRADWIRE_{name.upper()}) out for attach_fsdp"
        )
    check_fragments_used(config)


def _replicate_group(units: Sequence[FsdpUnit]) -> dist.ProcessGroup:
    groups = {id(unit.replicate_group): unit.replicate_group for unit in units}
    if len(groups) != 1:
        raise ConfigError("attach_fsdp: the model's units are replicated over different meshes; use one mesh for all")
    return next(iter(groups.values()))


def _any_shard(group: dist.ProcessGroup) -> Callable[[bool], bool]:
    """A function that says whether any rank of the site passed True: a loss scaler checks all shards before it skips a
    step."""

    def agree(own: bool) -> bool:
        device = dist.distributed_c10d._get_object_coll_device(group)
        flag = torch.tensor([float(own)], dtype=torch.float32, device=device)
        dist.all_reduce(flag, dist.ReduceOp.MAX, group=group)
        return bool(flag.item())

    return agree


def _synchronise_device(device: torch.device) -> None:
    """Wait for the device: a session's threads use other streams than FSDP2."""
    if device.type != "cpu":
        getattr(torch, device.type).synchronize(device)
