"""Handle: what attaching a model returns: its state for checkpoints, its summary, notes, close()."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any
from weakref import WeakSet

from torch import nn

from gradwire.closing import Closing
from gradwire.compress.error_feedback import as_states
from gradwire.config import Config
from gradwire.errors import ConfigError
from gradwire.events import Event, Sink
from gradwire.fork import void_in_child
from gradwire.observe.event_bus import UserNote
from gradwire.observe.summary import Summary, SummarySink
from gradwire.runtime.builder import BuiltSession
from gradwire.runtime.governor import AdaptiveGovernor
from gradwire.runtime.loss_scaling import Scaler
from gradwire.runtime.plan_governor import PlanGovernor
from gradwire.sites.replica_state import BucketLayout, ReplicaState, Stateful

# Whose threads run. Those that complete futures must be gone before the interpreter is.
_OPEN: WeakSet[Handle] = WeakSet()
_STEP_TO_LOAD = "the step of the state to load"


class Handle:
    """The handle of an attached model: state, summary, close()."""

    def __init__(
        self, assembly: BuiltSession, config: Config, replica: tuple[nn.Module, BucketLayout] | None = None
    ) -> None:
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
    def tally(self) -> SummarySink:
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
        told = UserNote(loss, accuracy, epoch, total_steps, values)
        self._assembly.watch.note(self._assembly.session.step, told)
        if loss is not None and isinstance(self._assembly.governor, AdaptiveGovernor | PlanGovernor):
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

        session.hand_over(ReplicaState(module, others, set_step, layout))

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
