"""FSDP2 integration: `attach_fsdp(model)` synchronises the replicate dimension of an HSDP model.

    mesh = init_device_mesh("cpu", (sites, ranks_per_site), mesh_dim_names=("replicate", "shard"))
    fully_shard(model, mesh=mesh)              # as before: FSDP2 on a two-dimensional mesh
    handle = gradwire.attach_fsdp(model)       # or attach(model), which takes both kinds of models
    ... train as before ...

Inside a site FSDP2 gathers parameters and reduce-scatters gradients as before. Each rank then holds the site's mean of
its shard. A session over the replicate group, instead of torch's all-reduce, synchronises it with the ranks that hold
the same shard at other sites. In: the flat reduced shard of one FSDP unit, its parameters side by side, each padded to
the shard size. Out: the same buffer with the mean over sites. With local steps (integrations/fsdp_local.py) the site's
mean stays, and the session synchronises the weights of the shards at the end of a round.

FSDP2 makes the gradients views of that buffer. Where nothing else reads it in backward (`FsdpUnit.views_only`), the
hook returns at once and communication overlaps with backward; the end of backward waits. `off` does the operation that
HSDP does. As with DDP the hook cannot be removed; `handle.detach()` switches to plain averages.

With a controller the ranks of the whole mesh decide as one job: the shards of a site share its uplink, so what each
would see of it depends on what the others send. The first rank decides, from what all measured, for all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule

from gradwire.config import Config
from gradwire.errors import ConfigError
from gradwire.integrations.arguments import check_fragments_used, given
from gradwire.integrations.fsdp_hook import FsdpHook
from gradwire.integrations.fsdp_local import attach_local_fsdp
from gradwire.integrations.fsdp_unit import FsdpUnit, after_backward, units_of
from gradwire.integrations.handle import Handle, handle_of, keep_with
from gradwire.integrations.local_attach import LocalOptimizers, check_optimizer_given
from gradwire.integrations.scaler_search import ScalerSearch
from gradwire.integrations.shard_handle import ShardHandle
from gradwire.runtime.builder import build
from gradwire.runtime.plain_path import hsdp_all_reduce


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
    same handle. `level` and `lossiest` are those of `attach`, which takes such a model too, and local steps with it.
    """
    known = handle_of(model)
    if known is not None and (config, record, level, lossiest) == (None,) * 4:
        return known
    if known is not None:
        raise ConfigError(
            "attach_fsdp: gradwire is attached to this model already, and a model takes one configuration; call "
            "attach_fsdp(model) without one to get its handle"
        )
    effective = given(config, level, record, lossiest)
    _check_wrapped(model)
    check_optimizer_given(effective, None, None)
    return attach_sharded(model, effective, LocalOptimizers(None, None))


def attach_sharded(model: nn.Module, config: Config, optimizers: LocalOptimizers) -> Handle:
    """Attach to a model that is not attached yet. `optimizers` are for local steps, where the configuration has
    them."""
    _check_supported(config)
    units = units_of(model)
    group = _replicate_group(units)
    if config.local_steps:
        handle: Handle = attach_local_fsdp(model, config, optimizers, units, group)
    else:
        handle = _attach(model, config, units, group)
    keep_with(model, handle)
    return handle


def _attach(model: nn.Module, config: Config, units: Sequence[FsdpUnit], group: dist.ProcessGroup) -> Handle:
    parameters = sum(unit.numel for unit in units)
    # Every shard's group would open a wire of its own: the transport stays the group's unless one is configured.
    built = build(config, group, parameters, hsdp_all_reduce(group), on_cpu=False, job_ranks=units[0].job_ranks)
    if units[0].shard_group is not None:
        built.session.scaling.any_shard = units[0].any_shard
    hook = FsdpHook(built.session, group.size())
    for unit in units:
        unit.set_hook(hook)
    after_backward(model, hook.end_of_backward)
    ScalerSearch(model, built.session.scaling)
    return ShardHandle(built, config, units[0].shard)


def _check_wrapped(model: nn.Module) -> None:
    if not isinstance(model, FSDPModule):
        raise ConfigError(
            f"attach_fsdp: {type(model).__name__} is not wrapped by FSDP2; wrap it first: "
            "fully_shard(model, mesh=mesh) with a mesh of (replicate, shard). "
            "For a DistributedDataParallel model use gradwire.attach"
        )


def _check_supported(config: Config) -> None:
    if config.planner:
        raise ConfigError(
            f"plan: {config.plan!r} cannot be used with FSDP2, which does not show which unit is a backward's last; "
            "leave plan (GRADWIRE_PLAN) out for a model that is sharded by fully_shard"
        )
    check_fragments_used(config)


def _replicate_group(units: Sequence[FsdpUnit]) -> dist.ProcessGroup:
    groups = {id(unit.replicate_group): unit.replicate_group for unit in units}
    if len(groups) != 1:
        raise ConfigError("attach_fsdp: the model's units are replicated over different meshes; use one mesh for all")
    return next(iter(groups.values()))
