"""The first door: `attach(ddp_model)` registers a DDP communication hook over whatever process group exists.

    model = DistributedDataParallel(net)
    handle = gradwire.attach(model)            # or attach(model, "topk:0.01+int8"), a Config, a TOML file
    ... train as before ...
    print(handle.summary())

DDP takes one hook per model and never gives it back, so there is no removing gradwire from a model; `handle.detach()`
switches it to plain DDP from the next step on, and sends what still waits in the residuals with that step.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gradwire.assemble import Assembly, assemble
from gradwire.closing import Closing
from gradwire.compress.feedback import as_states
from gradwire.config import Config, resolve, with_level, with_plan, with_record, with_transport
from gradwire.errors import ConfigError
from gradwire.events import Event, Sink
from gradwire.fork import void_in_child
from gradwire.govern import Adaptive
from gradwire.handover import Handover, Layout, Stateful
from gradwire.hook import Hook, register, sparse_module
from gradwire.loss_scaling import Scaler, check_scaler
from gradwire.observe.tally import Summary, Tally
from gradwire.observe.watch import Told
from gradwire.plan_governor import PlanGovernor

# Which models have a handle; they vanish from here with the model.
_ATTACHED: WeakKeyDictionary[DistributedDataParallel, Handle] = WeakKeyDictionary()
# Whose threads run. Those that complete futures must be gone before the interpreter is.
_OPEN: WeakSet[Handle] = WeakSet()
_STEP_TO_LOAD = "the step of the state to load"


class Handle:
    """The handle of an attached model: state, summary, close()."""

    def __init__(self, assembly: Assembly, config: Config, replica: tuple[nn.Module, Layout] | None = None) -> None:
        self._assembly = assembly
        self._replica = replica
        self.config = config
        session, watch = assembly.session, assembly.watch
        self._open = Closing(session.close, lambda: watch.close(session.step))
        _OPEN.add(self)
        void_in_child(self, Handle._void)

    def summary(self) -> Summary:
        """Steps, bytes, levels and reasons so far, on this rank; prints well."""
        return self.tally.summary()

    @property
    def tally(self) -> Tally:
        """What the summary is made of; it holds neither the model nor the session."""
        return self._assembly.tally

    def state_dict(self) -> dict[str, Any]:
        """This rank's residuals and warm starts. Every rank saves its own."""
        state = self._assembly.feedback.state_dict()
        session = self._assembly.session
        return {**state, "factors": session.codecs.factors(), "step": session.step, "scale": session.scaling.scale}

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Take over a saved state: this rank's own, or a list with those of all ranks when the world size changed.

        Every rank calls this at the same point, with states of the same step: ConfigError on all of them otherwise.
        """
        try:
            states = as_states(state)
        except ConfigError:
            # Ranks that have a state do not wait for this one.
            self._assembly.agree({_STEP_TO_LOAD: "none: this is no state"})
            raise
        first = states[0]
        step = int(first.get("step", 0))
        self._assembly.agree({_STEP_TO_LOAD: str(step), **self._facts_to_load(states)})
        if self._assembly.compared is not None:
            self._assembly.compared.begin_again()
        self._check_to_load(states)
        self._assembly.feedback.load_state_dict(state)
        self._assembly.session.resend()
        self._assembly.session.codecs.load_factors(first.get("factors", {}))
        self._assembly.session.scaling.scale = first.get("scale")
        self._assembly.session.step = step

    def _facts_to_load(self, states: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        """What else must be the same on all ranks that load."""
        return {}

    def _check_to_load(self, states: Sequence[Mapping[str, Any]]) -> None:
        """ConfigError where these states are not for this handle; after `agree`, so that all ranks raise or none."""

    def note(
        self,
        loss: float | None = None,
        *,
        accuracy: float | None = None,
        epoch: float | None = None,
        total_steps: int | None = None,
        **values: float,
    ) -> None:
        """Tell gradwire how training goes. Optional, all of it.

        `loss` lets the guard back off when compression seems to hurt; `total_steps` lets views tell the time left; the
        rest, with any numbers of your own, goes into the recording and from there into views and reports.
        """
        told = Told(loss, accuracy, epoch, total_steps, values)
        self._assembly.watch.note(self._assembly.session.step, told)
        if loss is not None and isinstance(self._assembly.governor, Adaptive | PlanGovernor):
            self._assembly.governor.loss = float(loss)

    def add_sink(self, sink: Sink | Callable[[Event], None]) -> None:
        """Hand every event from now on to `sink` too: any object with `emit`, or a function of one event.

        It is called from the training thread and from gradwire's; it must return at once. What it raises is logged
        and it is not called again.
        """
        self._assembly.watch.add(sink)

    @property
    def step(self) -> int:
        """Steps that the job has made. A rank that was taken back counts those it missed: loops that end by this number
        end together."""
        return self._assembly.session.step

    def hand_over(self, *others: Stateful) -> None:
        """Let a rank that was cut off be taken back (`planning.elastic`), and say what it needs beside the model.

        Parameters and buffers are handed to it anyway. Name everything else that a step depends on: the optimizer
        (always: without its state the replicas drift apart), a learning-rate schedule, a loss scaler, anything with
        `state_dict` and `load_state_dict`. Every rank names the same in the same order, once, before the first step.
        Without this call, and without an elastic plan, nothing is ever taken back.
        """
        if self._replica is None:
            raise ConfigError("hand_over: only DDP models that attach() was called for have replicas to hand over")
        session = self._assembly.session
        module, layout = self._replica

        def set_step(step: int) -> None:
            session.step = step + 1  # its last bucket is under way, as it is on the others

        session.hand_over(Handover(module, others, set_step, layout))

    def rescale_residuals(self, factor: float) -> None:
        """Multiply what waits by `factor`, which is new_scale / old_scale when a loss scaler changes its scale. Not
        needed for a scaler that gradwire knows (`attach(model, scaler=scaler)`), and does no harm there."""
        self._assembly.feedback.rescale(factor)
        self._assembly.session.scaling.rescaled(factor)

    def follow(self, scaler: Scaler) -> None:
        """Let residuals follow this loss scaler: its scale, and the steps that it skips."""
        self._assembly.session.scaling.follow(scaler)

    def detach(self) -> None:
        """Plain DDP from the next step on. Every rank calls this between the same two steps."""
        self._assembly.session.switch_off()

    def _void(self) -> None:
        """In a forked child (a DataLoader worker): threads and connections are the parent's to close."""
        self._open = Closing()
        _OPEN.discard(self)

    def close(self) -> None:
        """Stop the threads. Called at exit and when the model is gone; call it yourself before destroying the process
        group early. Where it raises, the rest is closed all the same, and another call tries again. Does nothing in a
        process that was forked from the one that attached."""
        self._open.close()
        _OPEN.discard(self)


def close_with(model: nn.Module, handle: Handle) -> None:
    """Nobody can use the session of a model that is gone."""
    finalizer = weakref.finalize(model, _forgotten, handle)
    finalizer.atexit = False


def _forgotten(handle: Handle) -> None:
    # Garbage is collected in whatever thread is running, and closing waits for threads, which may be this one.
    if threading.current_thread() is threading.main_thread():
        handle.close()
    else:
        threading.Thread(target=handle.close, name="gradwire-close").start()


def _close_all() -> None:
    with ExitStack() as closing:
        for handle in list(_OPEN):
            closing.callback(handle.close)


atexit.register(_close_all)


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
    assembly = assemble(effective, model.process_group, parameters)
    hook = Hook(model, assembly.session)
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
