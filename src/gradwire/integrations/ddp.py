"""DDP integration: `attach(ddp_model)` registers a DDP communication hook, on the model's own process group.

    model = DistributedDataParallel(net)
    handle = gradwire.attach(model)            # or attach(model, "topk:0.01+int8"), a Config, a TOML file
    ... train as before ...
    print(handle.summary())

DDP takes one hook per model and cannot remove it. `handle.detach()` switches to plain DDP from the next step on; that
step also sends what is left in the residuals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from gradwire.config import AUTO_PERIOD, Config
from gradwire.errors import ConfigError, GradwireError
from gradwire.integrations.arguments import (
    check_fragments_used,
    given,
    with_fragments,
    with_local_steps,
    with_plan,
    with_round_seconds,
    with_transport,
)
from gradwire.integrations.ddp_hook import DdpHook, register, sparse_module
from gradwire.integrations.fsdp import attach_sharded
from gradwire.integrations.handle import Handle, handle_of, keep_with
from gradwire.integrations.local_attach import LocalOptimizers, attach_local, check_optimizer_given
from gradwire.integrations.local_handle import LocalStepsHandle
from gradwire.integrations.optimizer_kind import watch_optimizer
from gradwire.integrations.period_attach import attach_period
from gradwire.integrations.scaler_search import ScalerSearch
from gradwire.local_steps.outer_optimizer import OuterFactory
from gradwire.runtime.builder import build
from gradwire.runtime.loss_scaling import Scaler, check_scaler


def attach(  # noqa: PLR0913 - the settings that users change most, by name
    model: DistributedDataParallel | FSDPModule,
    config: Config | str | Path | Mapping[str, Any] | None = None,
    *,
    transport: str | None = None,
    plan: str | None = None,
    record: str | Path | None = None,
    level: str | None = None,
    lossiest: str | None = None,
    scaler: Scaler | None = None,
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
    sync_every: int | Literal["auto"] | None = None,
    sync_seconds: float | None = None,
    outer: str | OuterFactory | None = None,
    num_fragments: int | None = None,
    fragment_sync_delay: int | None = None,
) -> Handle:
    """Let gradwire synchronise this model's gradients. Every rank calls it at the same point.

    `level` is a level ("int8", "topk:0.01+int8", "off") or a controller that chooses one ("auto"). `config` may be that
    too, or the path of a TOML file, a mapping of settings or a Config. `lossiest` is the lossiest level that a
    controller may choose, as in attach(model, "auto", lossiest="int4").
    `transport` is "group" (the collectives of the model's process group), "ltp" (gradwire's own, over UDP; TCP where
    UDP is blocked), "tcp", or "auto": the group first, then what adaptive levels measure to be faster. `plan` names a
    planner: gradients then travel over its trees (docs/planning.md), on a wire of gradwire's own; with "auto" they do
    so where that is measured to be faster. `record` names a directory for the ranks' event files, as GRADWIRE_RECORD
    and the setting do.
    `scaler` is this model's loss scaler (torch.amp.GradScaler); if every rank's training loop has exactly one, gradwire
    finds it.
    `sync_every` allows local steps (docs/howto/local-steps.md): ranks train alone for this many steps of `optimizer`
    (or of each in a list of several), then synchronise their weights by an outer optimizer; "auto" lets gradwire choose
    how many by the measured network, or synchronous training. `sync_seconds` ends a round by time instead, for machines
    of unequal speed: each rank makes as many steps as it can, and counts by them in the mean. `outer` is "nesterov",
    "average", or a function that makes a torch optimizer for given parameters. With `num_fragments` layers are
    synchronised in that many groups, one after another, and with `fragment_sync_delay` training goes on for this many
    steps while a group is exchanged.
    If the model is attached already (by `gradwire.run`) and no configuration is passed, its handle is returned. A model
    that `torch.compile` made from a DDP model counts as that DDP model: Accelerate compiles last. A model that
    `fully_shard` made on a mesh of (replicate, shard) is synchronised across its replicas (docs/sharded.md).
    """
    wrapped = _wrapped_model(model)
    if scaler is not None:
        check_scaler(scaler)
    known = handle_of(wrapped)
    if known is not None:
        _check_unconfigured(config, transport, plan, record, level, lossiest, sync_every, outer)
        _check_unconfigured(sync_seconds, num_fragments, fragment_sync_delay)
        handle = known
        if optimizer is not None and isinstance(handle, LocalStepsHandle):
            handle.use(optimizer)
    else:
        effective = given(config, level, record, lossiest)
        effective = effective if plan is None else with_plan(effective, plan)
        effective = effective if transport is None else with_transport(effective, transport)
        factory, kind = (outer, None) if callable(outer) else (None, outer)
        effective = with_round_seconds(with_local_steps(effective, sync_every, kind), sync_seconds)
        effective = with_fragments(effective, num_fragments, fragment_sync_delay)
        check_optimizer_given(effective, optimizer, outer)
        optimizers = LocalOptimizers(optimizer, factory)
        if isinstance(wrapped, DistributedDataParallel):
            handle = attach_configured(wrapped, effective, optimizers)
        else:
            handle = attach_sharded(wrapped, effective, optimizers)
    if scaler is not None:
        handle.follow(scaler)
    return handle


def attach_configured(model: DistributedDataParallel, config: Config, optimizers: LocalOptimizers) -> Handle:
    """Attach to a model that is not attached yet. `optimizers` are for local steps, where the configuration has them;
    without an inner one, the first that steps the model is taken."""
    _check_sparse(config, model)
    check_fragments_used(config)
    if config.sync_every == AUTO_PERIOD and not config.voted_rounds:
        handle: Handle = attach_period(model, config, optimizers)
    else:
        handle = attach_local(model, config, optimizers) if config.local_steps else _attach(model, config)
    keep_with(model, handle)
    return handle


def _attach(model: DistributedDataParallel, config: Config) -> Handle:
    trained = [parameter for parameter in model.module.parameters() if parameter.requires_grad]
    on_cpu = all(parameter.device.type == "cpu" for parameter in trained)
    built = build(config, model.process_group, sum(parameter.numel() for parameter in trained), on_cpu=on_cpu)
    hook = DdpHook(model, built.session)
    handle = Handle(built, config, (model.module, hook.layout))
    try:
        register(model, hook)
    except GradwireError:
        handle.close()
        raise
    ScalerSearch(model, built.session.scaling)
    watch_optimizer(model.module.parameters(), built.sampler)
    return handle


def _wrapped_model(model: object) -> nn.Module:
    """The DDP or FSDP2 model itself, also where `torch.compile` wrapped it; ConfigError where there is none."""
    found: object = getattr(model, "_orig_mod", model)
    wrapped = isinstance(found, DistributedDataParallel | FSDPModule)
    if not (wrapped and isinstance(found, nn.Module)):
        raise ConfigError(
            f"attach: {type(found).__name__} is not a DistributedDataParallel model; "
            "wrap it first: attach(DistributedDataParallel(model)), or shard it: fully_shard(model, mesh=mesh)"
        )
    return found


def _check_unconfigured(*arguments: object) -> None:
    if any(argument is not None for argument in arguments):
        raise ConfigError(
            "attach: gradwire is attached to this model already, and a model takes one configuration; "
            "under gradwire.run set it by GRADWIRE_* variables"
        )


def _check_sparse(config: Config, model: DistributedDataParallel) -> None:
    if config.plan and config.planning.elastic and (name := sparse_module(model.module)):
        raise ConfigError(
            f"planning.elastic: the gradient of {name!r} is sparse and goes through the model's process group, which "
            "fails when a rank is lost; construct that module with sparse=False, or set planning.elastic to false"
        )
