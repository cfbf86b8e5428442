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

import msgspec
import torch
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from gradwire.assemble import Assembly, assemble
from gradwire.collective.absent import Absent
from gradwire.config import Config, resolve, with_plan, with_transport
from gradwire.errors import ConfigError
from gradwire.events import Event, Sink
from gradwire.flow import Bucket, ParameterSlice
from gradwire.govern import Adaptive
from gradwire.handover import Handover, Layout, Stateful
from gradwire.observe.tally import Summary, Tally
from gradwire.observe.watch import Told

# Which models have a handle; they vanish from here with the model.
_ATTACHED: WeakKeyDictionary[DistributedDataParallel, Handle] = WeakKeyDictionary()
# Whose threads run. Those that complete futures must be gone before the interpreter is.
_OPEN: WeakSet[Handle] = WeakSet()


class Handle:
    """What `attach` returns: the session's state and its story."""

    def __init__(self, assembly: Assembly, config: Config, replica: tuple[nn.Module, Layout] | None = None) -> None:
        self._assembly = assembly
        self._replica = replica
        self.config = config
        self._closed = False
        _OPEN.add(self)

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
        return {**state, "factors": self._assembly.session.factors(), "step": self._assembly.session.step}

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Take over a saved state: this rank's own, or a list with those of all ranks when the world size changed.

        Every rank calls this at the same point, with states of the same step: ConfigError on all of them otherwise.
        """
        first = state if isinstance(state, Mapping) else state[0]
        step = int(first.get("step", 0))
        self._assembly.agree({"the step of the state to load": str(step)})
        self._assembly.feedback.load_state_dict(state)
        self._assembly.session.load_factors(first.get("factors", {}))
        self._assembly.session.step = step

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
        if loss is not None and isinstance(self._assembly.governor, Adaptive):
            self._assembly.governor.loss = float(loss)
        told = Told(loss, accuracy, epoch, total_steps, values)
        self._assembly.watch.note(self._assembly.session.step, told)

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
        """Multiply what waits by `factor`: call it with new_scale / old_scale when a loss scaler changes its scale."""
        self._assembly.feedback.rescale(factor)

    def detach(self) -> None:
        """Plain DDP from the next step on. Every rank calls this between the same two steps."""
        self._assembly.session.switch_off()

    def close(self) -> None:
        """Stop the threads. Called at exit and when the model is gone; call it yourself before destroying the process
        group early."""
        if not self._closed:
            self._closed = True
            _OPEN.discard(self)
            try:
                self._assembly.session.close()
            finally:
                self._assembly.watch.close(self._assembly.session.step)


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


class BucketWeights:
    """The parameters under a bucket, as pruning sees them."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = parameters

    def read(self, start: int, numel: int) -> Tensor:
        flat = torch.cat([parameter.detach().flatten().float() for parameter in self._parameters])
        return flat[start : start + numel]

    def zero(self, places: Tensor) -> None:
        offset = 0
        for parameter in self._parameters:
            size = parameter.numel()
            inside = places[(places >= offset) & (places < offset + size)] - offset
            parameter.detach().view(-1)[inside] = 0.0
            offset += size


class _Hook:
    """DDP's view of a session: turns GradBuckets into Buckets and counts steps."""

    def __init__(self, model: DistributedDataParallel, assembly: Assembly) -> None:
        self._names = {id(parameter): name for name, parameter in model.module.named_parameters()}
        self._session = assembly.session
        self._in_backward = False
        self._slices: dict[tuple[int, ...], tuple[ParameterSlice, ...]] = {}
        self.layout = Layout()
        # DDP lays its buckets out anew after the first backward. Where the others have done so, that one is ours alone.
        self._rehearses = isinstance(model.process_group, Absent)

    def __call__(self, bucket: GradBucket) -> Future[Tensor]:
        if self._rehearses:
            self._rehearses = not bucket.is_last()
            unchanged: Future[Tensor] = Future()
            unchanged.set_result(bucket.buffer())
            return unchanged
        # A rank that is done before the others (`model.join()`) sends zeros for them, and has no backward to do it in.
        alone = torch._C._current_graph_task_id() == -1
        if not (self._in_backward or alone):
            self._in_backward = True
            # Runs on the training thread before DDP's own wait: errors surface there with their type.
            torch.autograd.Variable._execution_engine.queue_callback(self._end_of_backward)
        parameters = bucket.parameters()
        buffer = bucket.buffer()
        noun = Bucket(
            index=bucket.index(),
            step=self._session.step,
            numel=buffer.numel(),
            itemsize=buffer.element_size(),
            slices=self._slices_of(parameters),
            is_last=bucket.is_last(),
        )
        self.layout.buckets[noun.index] = tuple(part.name for part in noun.slices)
        if noun.is_last:
            self._session.step += 1
        future = self._session.synchronise(noun, buffer, BucketWeights(parameters))
        if alone and noun.is_last:
            self._session.settle()
        return future

    def _end_of_backward(self) -> None:
        self._in_backward = False
        self._session.settle()

    def _slices_of(self, parameters: Sequence[Tensor]) -> tuple[ParameterSlice, ...]:
        key = tuple(map(id, parameters))
        known = self._slices.get(key)
        if known is None:
            offset, slices = 0, []
            for parameter in parameters:
                name, numel = self._names[id(parameter)], parameter.numel()
                slices.append(ParameterSlice(name, offset, tuple(parameter.shape), numel))
                offset += numel
            known = self._slices[key] = tuple(slices)
        return known


def attach(
    model: DistributedDataParallel,
    config: Config | str | Path | Mapping[str, Any] | None = None,
    *,
    transport: str | None = None,
    plan: str | None = None,
    record: str | Path | None = None,
) -> Handle:
    """Let gradwire synchronise this model's gradients. Every rank calls it at the same point.

    `transport` is "group" (the collectives of the model's process group), "ltp" (gradwire's own, over UDP; TCP where
    that is blocked) or "tcp". `plan` names a planner: gradients then travel its trees (docs/planning.md), over a wire
    of ours. `record` names a directory for the ranks' event files, as GRADWIRE_RECORD and the setting do.
    A model that is attached already (by `gradwire.run`) gives its handle back when no configuration is passed. What
    `torch.compile` made of a DDP model is taken for that model: Accelerate compiles last.
    """
    model = getattr(model, "_orig_mod", model)
    if not isinstance(model, DistributedDataParallel):
        raise ConfigError(
            f"attach: {type(model).__name__} is not a DistributedDataParallel model; "
            "wrap it first: attach(DistributedDataParallel(model)); for fully_shard there is attach_fsdp(model)"
        )
    known = _ATTACHED.get(model)
    if known is not None:
        if (config, transport, plan, record) == (None, None, None, None):
            return known
        raise ConfigError(
            "attach: gradwire is attached to this model already; it takes one configuration; under gradwire.run "
            "that is the one of the GRADWIRE_* variables"
        )
    effective = recorded(resolve(config), record)
    if plan is not None:
        effective = with_plan(effective, plan)
    if transport is not None:
        effective = with_transport(effective, transport)
    parameters = sum(parameter.numel() for parameter in model.module.parameters() if parameter.requires_grad)
    assembly = assemble(effective, model.process_group, parameters)
    hook = _Hook(model, assembly)
    handle = Handle(assembly, effective, (model.module, hook.layout))
    try:
        model.register_comm_hook(hook, _call)
    except RuntimeError as error:
        handle.close()
        raise ConfigError(f"attach: this model already has a communication hook ({error})") from error
    _ATTACHED[model] = handle
    close_with(model, handle)
    return handle


def recorded(config: Config, record: str | Path | None) -> Config:
    """The configuration with its recording in `record`, where that is given."""
    return config if record is None else msgspec.structs.replace(config, record=str(record))


def _call(state: _Hook, bucket: GradBucket) -> Future[Tensor]:
    return state(bucket)


# DDP checks these annotations by identity, so they must be types and not the strings this file's imports make them.
_call.__annotations__ = {"state": _Hook, "bucket": GradBucket, "return": Future[Tensor]}
