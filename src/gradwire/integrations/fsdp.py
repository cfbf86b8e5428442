"""The door for sharded training: `attach_fsdp(model)` takes over the replicate dimension of an HSDP model.

    mesh = init_device_mesh("cpu", (sites, ranks_per_site), mesh_dim_names=("replicate", "shard"))
    fully_shard(model, mesh=mesh)              # as before: FSDP2 on a two-dimensional mesh
    handle = gradwire.attach_fsdp(model)
    ... train as before ...

Inside a site FSDP2 gathers parameters and reduce-scatters gradients as ever. What each rank then holds, the site's mean
of its shard, is synchronised with the ranks that hold the same shard elsewhere: by a session over the replicate group
instead of torch's all-reduce. In: the flat reduced shard of one FSDP unit, its parameters side by side, each padded to
the shard size. Out: the same buffer with the mean over sites.

FSDP2 makes the gradients views of that buffer, so where nothing else touches it in backward (`FsdpUnit.views_only`) the
hook returns at once and communication overlaps with backward; the end of backward waits. `off` does the operation
that HSDP does. As with DDP there is no removing gradwire from a model; `handle.detach()` means plain averages.
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
from gradwire.integrations.ddp import given
from gradwire.integrations.fsdp_unit import FsdpUnit, after_backward, units_of
from gradwire.integrations.handle import Handle, close_with
from gradwire.runtime.builder import BuiltSession, average, build
from gradwire.runtime.session import Session
from gradwire.transport.lanes.collectives import explain
from gradwire.types import Bucket

_ATTACHED: WeakKeyDictionary[nn.Module, Handle] = WeakKeyDictionary()


class ShardHandle(Handle):
    """A handle whose state belongs to one shard of the model: it loads where the model is cut the same way."""

    def __init__(self, assembly: BuiltSession, config: Config, shard: tuple[int, int]) -> None:
        super().__init__(assembly, config)
        self._shard = shard

    def state_dict(self) -> dict[str, Any]:
        """This rank's residuals and warm starts. Every rank saves its own."""
        return {**super().state_dict(), "shard": list(self._shard)}

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Take over this rank's own state or, when the number of replicas changed, a list with those of its shard."""
        super().load_state_dict(state)

    def _facts_to_load(self, states: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        return {"the shard of the state to load": ", ".join(sorted({_in_words(_shard_of(one)) for one in states}))}

    def _check_to_load(self, states: Sequence[Mapping[str, Any]]) -> None:
        for one in states:
            if _shard_of(one) != self._shard:
                raise ConfigError(
                    f"load_state_dict: the state is of shard {_in_words(_shard_of(one))}, this rank holds shard "
                    f"{_in_words(self._shard)}; load each shard's own state, with as many shards as saved"
                )


def _shard_of(state: Mapping[str, Any]) -> tuple[int, int]:
    index, count = state.get("shard", (0, 1))
    return int(index), int(count)


def _in_words(shard: tuple[int, int]) -> str:
    return f"{shard[0]} of {shard[1]}"


class _FsdpHook:
    """FSDP2's view of a session: turns reduced shards into Buckets, counts them and the steps.

    The buckets of a backward are numbered in the order they come, which is the same on all replicas.
    """

    def __init__(self, session: Session, replicas: int) -> None:
        self._session = session
        self._replicas = replicas
        self._count = 0
        self._partial: dict[FsdpUnit, Tensor] = {}
        self._under_way: list[Future[Tensor]] = []

    def __call__(self, unit: FsdpUnit, buffer: Tensor) -> None:
        if not self._synchronises_now(unit, buffer):
            return
        if unit.divides_itself:
            buffer.mul_(self._replicas)  # the user's divisor is for the sum over replicas; a session gives the mean
        slices, weights = unit.layout(buffer.numel())
        noun = Bucket(self._count, self._session.step, buffer.numel(), buffer.element_size(), slices, is_last=False)
        self._count += 1
        _quiesce(buffer.device)
        self._under_way.append(self._session.synchronise(noun, buffer, weights))
        if not unit.views_only(buffer):
            self._settle()
            _quiesce(buffer.device)

    def _synchronises_now(self, unit: FsdpUnit, buffer: Tensor) -> bool:
        """`set_requires_all_reduce(False)` keeps the site's mean back, to go along with the next that may go."""
        held = self._partial.pop(unit, None)
        if held is not None:
            buffer.add_(held)
        if unit.may_go:
            return True
        self._partial[unit] = buffer.clone()
        buffer.zero_()
        return False

    def end_of_backward(self) -> None:
        """All units of this backward were here; a backward in which none may go is no step."""
        if not self._count:
            return
        self._count = 0
        self._session.step += 1
        self._settle()

    def _settle(self) -> None:
        """Wait for what is under way; a session's errors keep their type."""
        futures, self._under_way = self._under_way, []
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
) -> Handle:
    """Let gradwire synchronise this model's gradients across the replicate dimension of its mesh.

    The model is wrapped by `fully_shard` on a mesh of (replicate, shard), or by `replicate` on one of (replicate,).
    Every rank calls it at the same point, before the first backward. A second call without a configuration gives the
    same handle back.
    """
    known = _ATTACHED.get(model)
    if known is not None and (config, record, level) == (None, None, None):
        return known
    if known is not None:
        raise ConfigError("attach_fsdp: gradwire is attached to this model already; it takes one configuration")
    if not isinstance(model, FSDPModule):
        raise ConfigError(
            f"attach_fsdp: {type(model).__name__} is not wrapped by FSDP2; wrap it first: "
            "fully_shard(model, mesh=mesh) with a mesh of (replicate, shard). "
            "For a DistributedDataParallel model there is gradwire.attach"
        )
    effective = given(config, level, record)
    if effective.plan:
        raise ConfigError(
            f"plan: {effective.plan!r} cannot carry an FSDP2 model, whose backward names no unit as its last; "
            "leave plan (GRADWIRE_PLAN) empty for attach_fsdp"
        )
    units = units_of(model)
    group = _replicate_group(units)
    parameters = sum(unit.numel for unit in units)
    assembly = build(effective, group, parameters, average(group))
    if units[0].shard_group is not None:
        assembly.session.scaling.agree = _any_shard(units[0].shard_group)
    hook = _FsdpHook(assembly.session, group.size())
    for unit in units:
        unit.hand_over(hook)
    after_backward(model, hook.end_of_backward)
    handle = _ATTACHED[model] = ShardHandle(assembly, effective, units[0].shard)
    close_with(model, handle)
    return handle


def _replicate_group(units: Sequence[FsdpUnit]) -> dist.ProcessGroup:
    groups = {id(unit.replicate_group): unit.replicate_group for unit in units}
    if len(groups) != 1:
        raise ConfigError("attach_fsdp: the model's units are replicated over different meshes; use one mesh for all")
    return next(iter(groups.values()))


def _any_shard(group: dist.ProcessGroup) -> Callable[[bool], bool]:
    """Whether any rank of the site says so: a loss scaler looks at all shards before it skips a step."""

    def agree(own: bool) -> bool:
        device = dist.distributed_c10d._get_object_coll_device(group)
        flag = torch.tensor([float(own)], dtype=torch.float32, device=device)
        dist.all_reduce(flag, dist.ReduceOp.MAX, group=group)
        return bool(flag.item())

    return agree


def _quiesce(device: torch.device) -> None:
    """A session's threads use streams of their own: off the CPU nothing may be in flight on either side."""
    if device.type != "cpu":
        getattr(torch, device.type).synchronize(device)
