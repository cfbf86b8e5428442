"""The first door: `attach(ddp_model)` registers a DDP communication hook over whatever process group exists.

    model = DistributedDataParallel(net)
    handle = gradwire.attach(model)            # or attach(model, "topk:0.01+int8"), a Config, a TOML file
    ... train as before ...
    print(handle.summary())

DDP takes one hook per model and never gives it back, so there is no removing gradwire from a model; `handle.detach()`
switches it to plain DDP from the next step on, and sends what still waits in the residuals with that step.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from torch.nn.parallel import DistributedDataParallel

from gradwire.config import Config, resolve, with_level, with_plan, with_record, with_transport
from gradwire.errors import ConfigError
from gradwire.integrations.ddp_hook import DdpHook, register, sparse_module
from gradwire.integrations.handle import Handle, close_with
from gradwire.runtime.builder import build
from gradwire.runtime.loss_scaling import Scaler, check_scaler

# Which models have a handle; they vanish from here with the model.
_ATTACHED: WeakKeyDictionary[DistributedDataParallel, Handle] = WeakKeyDictionary()


def attach(
    model: DistributedDataParallel,
    config: Config | str | Path | Mapping[str, Any] | None = None,
    *,
    transport: str | None = None,
    plan: str | None = None,
    record: str | Path | None = None,
    level: str | None = None,
    scaler: Scaler | None = None,
) -> Handle:
    """Let gradwire synchronise this model's gradients. Every rank calls it at the same point.

    `level` is a level ("int8", "topk:0.01+int8", "off") or a controller that chooses one ("auto"); `config` may be that
    too, or the path of a TOML file, a mapping of settings or a Config.
    `transport` is "group" (the collectives of the model's process group), "ltp" (gradwire's own, over UDP; TCP where
    that is blocked) or "tcp". `plan` names a planner: gradients then travel its trees (docs/planning.md), over a wire
    of ours. `record` names a directory for the ranks' event files, as GRADWIRE_RECORD and the setting do. `scaler` is
    the loss scaler (torch.amp.GradScaler) of this model; where every rank's training loop has only one, it is found.
    A model that is attached already (by `gradwire.run`) gives its handle back when no configuration is passed. What
    `torch.compile` made of a DDP model is taken for that model: Accelerate compiles last.
    """
    model = getattr(model, "_orig_mod", model)
    if not isinstance(model, DistributedDataParallel):
        raise ConfigError(
            f"attach: {type(model).__name__} is not a DistributedDataParallel model; "
            "wrap it first: attach(DistributedDataParallel(model)); for fully_shard there is attach_fsdp(model)"
        )
    if scaler is not None:
        check_scaler(scaler)
    known = _ATTACHED.get(model)
    if known is not None:
        if (config, transport, plan, record, level) == (None, None, None, None, None):
            if scaler is not None:
                known.follow(scaler)
            return known
        raise ConfigError(
            "attach: gradwire is attached to this model already; it takes one configuration; under gradwire.run "
            "that is the one of the GRADWIRE_* variables"
        )
    effective = given(config, level, record)
    if plan is not None:
        effective = with_plan(effective, plan)
    if transport is not None:
        effective = with_transport(effective, transport)
    if effective.plan and effective.planning.elastic and (name := sparse_module(model.module)):
        raise ConfigError(
            f"planning.elastic: the gradient of {name!r} is sparse and goes through the model's process group, which "
            "does not outlive a rank; make it nn.Embedding(..., sparse=False), or leave planning.elastic off"
        )
    parameters = sum(parameter.numel() for parameter in model.module.parameters() if parameter.requires_grad)
    assembly = build(effective, model.process_group, parameters)
    hook = DdpHook(model, assembly.session)
    handle = Handle(assembly, effective, (model.module, hook.layout))
    try:
        register(model, hook)
    except RuntimeError as error:
        handle.close()
        raise ConfigError(f"attach: this model already has a communication hook ({error})") from error
    if scaler is not None:
        handle.follow(scaler)
    _ATTACHED[model] = handle
    close_with(model, handle)
    return handle


def given(
    config: Config | str | Path | Mapping[str, Any] | None, level: str | None, record: str | Path | None
) -> Config:
    """The effective configuration, with the arguments that stand for one setting."""
    effective = resolve(config)
    if level is not None:
        effective = with_level(effective, level)
    return effective if record is None else with_record(effective, record)
