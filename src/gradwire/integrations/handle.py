"""Handle: what attaching a model returns: state for checkpoints, summary, notes, close()."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from torch import nn

from gradwire.closing import Closing
from gradwire.compress.error_feedback import as_states
from gradwire.config import Config
from gradwire.errors import ConfigError
from gradwire.events import Event, Sink
from gradwire.fork import void_in_child
from gradwire.observe.event_bus import UserNote
from gradwire.observe.summary import Summary, SummarySink
from gradwire.runtime.adaptive_governor import AdaptiveGovernor
from gradwire.runtime.builder import BuiltSession
from gradwire.runtime.loss_scaling import Scaler
from gradwire.runtime.plan_governor import PlanGovernor
from gradwire.sites.replica_state import BucketLayout, ReplicaState, Stateful

# Handles whose threads run. Threads that complete futures must end before the interpreter does.
_OPEN: WeakSet[Handle] = WeakSet()
# The handles of attached models; an entry disappears with its model.
_ATTACHED: WeakKeyDictionary[nn.Module, Handle] = WeakKeyDictionary()
_STEP_TO_LOAD = "the step of the state to load"


class Handle:
    """The handle of an attached model: state, summary, close()."""

    def __init__(
        self, built: BuiltSession, config: Config, replica: tuple[nn.Module, BucketLayout] | None = None
    ) -> None:
        self._built = built
        self._replica = replica
        self.config = config
        session, event_bus = built.session, built.event_bus
        self._open = Closing(session.close, lambda: event_bus.close(session.step))
        _OPEN.add(self)
        void_in_child(self, Handle._void)

    def summary(self) -> Summary:
        """Steps, bytes, levels and reasons so far, on this rank; print it to read it."""
        return self.tally.summary()

    @property
    def tally(self) -> SummarySink:
        """The sink that collects the summary; it references neither the model nor the session."""
        return self._built.event_bus.summary_sink

    def state_dict(self) -> dict[str, Any]:
        """This rank's residuals and warm starts. Every rank saves its own."""
        state = self._built.feedback.state_dict()
        session, factors = self._built.session, self._built.codecs.factors()
        return {**state, "factors": factors, "step": session.step, "scale": session.scaling.scale}

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Load a saved state: this rank's own, or a list with those of all ranks when the world size changed.

        Every rank calls this at the same point, with states of the same step: ConfigError on all of them otherwise.
        """
        try:
            states = as_states(state)
        except ConfigError:
            # This rank takes part in the check too, so that ranks with a valid state do not wait for it.
            self._built.check_facts({_STEP_TO_LOAD: "none, it was given something else"})
            raise
        first = states[0]
        step = int(first.get("step", 0))
        self._built.check_facts({_STEP_TO_LOAD: str(step), **self._facts_to_load(states)})
        if self._built.replica_check is not None:
            self._built.replica_check.roll_back()
        self._check_to_load(states)
        self._built.feedback.load_state_dict(state)
        self._built.resend()
        self._built.codecs.load_factors(first.get("factors", {}))
        self._built.session.scaling.scale = first.get("scale")
        self._built.session.step = step

    def _facts_to_load(self, states: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        """Facts that must be the same on all ranks that load, beside the step."""
        return {}

    def _check_to_load(self, states: Sequence[Mapping[str, Any]]) -> None:
        """ConfigError where these states are not for this handle. Called after the facts were compared, so that all
        ranks raise or none does."""
        if any("local_steps" in one for one in states):
            raise ConfigError(
                "load_state_dict: this state was saved with local steps; its residuals are of weights and not of "
                "gradients. Attach with sync_every or sync_seconds, or load the model and the optimizer only"
            )

    def note(
        self,
        loss: float | None = None,
        *,
        accuracy: float | None = None,
        epoch: float | None = None,
        total_steps: int | None = None,
        **values: float,
    ) -> None:
        """Report how training goes. Every argument is optional.

        `loss` lets the accuracy guard compress less when compression seems to hurt, and lets `auto` compare what levels
        cost in steps with its predictions; `total_steps` lets views show the
        time left; the rest, with any numbers of your own, goes into the recording, and from there into views and
        reports.
        """
        note = UserNote(loss, accuracy, epoch, total_steps, values)
        self._built.event_bus.note(self._built.session.step, note)
        if loss is not None and isinstance(self._built.governor, AdaptiveGovernor | PlanGovernor):
            self._built.governor.loss = float(loss)

    def add_sink(self, sink: Sink | Callable[[Event], None]) -> None:
        """Send every event from now on to `sink` too: any object with `emit`, or a function of one event.

        It is called on the training thread and on gradwire's own, and must return at once. If it raises, the error is
        logged and it is not called again.
        """
        self._built.event_bus.add(sink)

    @property
    def step(self) -> int:
        """Steps that the job has made. A rank that rejoined counts those it missed, so loops that end at this number
        end together on all ranks."""
        return self._built.session.step

    def hand_over(self, *others: Stateful) -> None:
        """Let a disconnected rank rejoin (`planning.elastic`), and name what it receives beside the model.

        Parameters and buffers are sent to it anyway. Pass everything else that a step depends on: the optimizer
        (always: without its state the replicas diverge), a learning-rate schedule, a loss scaler, anything with
        `state_dict` and `load_state_dict`. Every rank passes the same in the same order, once, before the first step.
        Without this call, and without an elastic plan, no rank rejoins.
        """
        if self._replica is None:
            raise ConfigError("hand_over: only a DDP model attached by attach() can send its state to a rejoining rank")
        session = self._built.session
        module, layout = self._replica

        def set_step(step: int) -> None:
            session.step = step + 1  # the last bucket of the step is in flight, as on the other ranks

        session.set_replica_state(ReplicaState(module, others, set_step, layout))

    def rescale_residuals(self, factor: float) -> None:
        """Multiply residuals by `factor`: new_scale / old_scale when a loss scaler changes its scale. Not needed for a
        scaler that gradwire knows (`attach(model, scaler=scaler)`), but harmless."""
        self._built.feedback.rescale(factor)
        self._built.session.scaling.rescaled(factor)

    def follow(self, scaler: Scaler) -> None:
        """Use this loss scaler: residuals follow its scale and the steps that it skips."""
        self._built.session.scaling.follow(scaler)

    def synchronise(self) -> None:
        """End the round of local steps now: all ranks have the global weights afterwards. Every rank calls this, with
        `sync_every` after the same step. Nothing to do right after a round, and without local steps."""

    def count_samples(self, count: int) -> None:
        """With `sync_seconds`: the optimizer's next step is made with this many samples, and the rank's part in the
        mean of a round is weighted by samples instead of steps. Call it on every rank before each step, also several
        times where gradients are accumulated."""
        raise ConfigError(
            "count_samples: ranks are weighted by what they did in a round only with sync_seconds; here every rank has "
            "the same weight. Leave the call out, or attach with sync_seconds"
        )

    def global_weights(self) -> AbstractContextManager[None]:
        """With local steps: `with handle.global_weights(): evaluate()` evaluates the weights that all ranks share,
        those of the last end of a round, and returns to this rank's own. Without local steps the model has them
        anyway."""
        return nullcontext()

    def detach(self) -> None:
        """Plain DDP from the next step on. Every rank calls this between the same two steps."""
        self._built.session.detach()

    def _void(self) -> None:
        """In a forked child (a DataLoader worker): only the parent closes threads and connections."""
        self._open = Closing()
        _OPEN.discard(self)

    def close(self) -> None:
        """Stop the threads and close the connections.

        Called at exit and when the model is deleted; call it yourself before you destroy the process group earlier. If
        one part raises, the others are closed all the same, and another call tries again. Does nothing in a process
        that was forked from the one that attached.
        """
        self._open.close()
        _OPEN.discard(self)


def handle_of(model: nn.Module) -> Handle | None:
    """The handle of a model that is attached already."""
    return _ATTACHED.get(model)


def keep_with(model: nn.Module, handle: Handle) -> None:
    """The model has this handle from now on; it is closed when the model is deleted."""
    _ATTACHED[model] = handle
    finalizer = weakref.finalize(model, _on_model_deleted, handle)
    finalizer.atexit = False


def _on_model_deleted(handle: Handle) -> None:
    # Garbage is collected on whatever thread is running, and closing waits for threads, which may include this one.
    if threading.current_thread() is threading.main_thread():
        handle.close()
    else:
        threading.Thread(target=handle.close, name="gradwire-close").start()


def _close_all() -> None:
    with ExitStack() as closing:
        for handle in list(_OPEN):
            closing.callback(handle.close)


atexit.register(_close_all)
