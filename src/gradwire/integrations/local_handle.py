"""Local handle: the handle of a model that was attached with `sync_every`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from gradwire.config import Config
from gradwire.errors import ConfigError
from gradwire.integrations.handle import Handle
from gradwire.local_steps import round_state
from gradwire.local_steps.round_replica import RoundReplica
from gradwire.local_steps.rounds import Rounds
from gradwire.local_steps.step_counter import StepCounter
from gradwire.runtime.builder import BuiltSession
from gradwire.runtime.loss_scaling import Scaler
from gradwire.sites.placeholder_group import PlaceholderGroup
from gradwire.sites.replica_state import Stateful

log = logging.getLogger(__name__)


class GradientHook(Protocol):
    """Keeps gradients as they are, until it is `detached`: then they are synchronised."""

    detached: bool

    def detach(self) -> None: ...


@dataclass(frozen=True, slots=True)
class LocalParts:
    """What a handle with local steps has beside its session."""

    rounds: Rounds
    counter: StepCounter
    hook: GradientHook


class LocalStepsHandle(Handle):
    """Rounds of local steps: state, `synchronise`, `global_weights`."""

    def __init__(self, built: BuiltSession, config: Config, parts: LocalParts) -> None:
        super().__init__(built, config)
        self._rounds, self._counter, self._hook = parts.rounds, parts.counter, parts.hook

    @property
    def step(self) -> int:
        """Steps of the inner optimizer."""
        return self._rounds.steps

    @property
    def step_in_round(self) -> int:
        return self._rounds.step_in_round

    @property
    def sync_every(self) -> int:
        """Local steps of the present round."""
        return self._rounds.sync_every

    def use(self, optimizer: object) -> None:
        """Count the steps of this optimizer."""
        self._counter.bind(optimizer)

    def synchronise(self) -> None:
        self._rounds.finish("synchronise() was called")

    def global_weights(self) -> AbstractContextManager[None]:
        return self._rounds.global_weights()

    def state_dict(self) -> dict[str, Any]:
        """As without local steps, with the global weights, the outer optimizer's state, the step in the round and, in
        the middle of a round, this rank's own weights. Every rank saves its own. Waits for an exchange in flight."""
        self._rounds.exchange.arrive()  # it changes residuals
        return {**super().state_dict(), round_state.KEY: round_state.state_of(self._rounds)}

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """As without local steps; also sets the model's weights and buffers, which this state has."""
        self._rounds.exchange.arrive()  # it changes residuals
        super().load_state_dict(state)
        round_state.load(self._rounds, [state] if isinstance(state, Mapping) else state)

    def _facts_to_load(self, states: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        in_round = {str(one.get(round_state.KEY, {}).get("step_in_round", "unknown")) for one in states}
        return {"the step in the round of the state to load": ", ".join(sorted(in_round))}

    def _check_to_load(self, states: Sequence[Mapping[str, Any]]) -> None:
        round_state.check_states(self._rounds, states)

    def follow(self, scaler: Scaler) -> None:
        """Count the steps that this loss scaler skips. Weights are not scaled, so residuals are not either."""
        self._counter.follow(scaler)

    def rescale_residuals(self, factor: float) -> None:
        """Nothing to do: residuals are of weights, which have no loss scale."""

    def hand_over(self, *others: Stateful) -> None:
        """As without local steps: lets a lost rank rejoin, which then receives the global weights and buffers and the
        outer optimizer's state. Pass what else a round depends on: the optimizer, of which a new process gets the state
        that the sending rank has, and a learning-rate schedule. In a process that replaces a lost one this waits for
        the next end of a round, where it joins."""
        if not self._elastic:
            raise ConfigError(
                "hand_over: ranks rejoin over an elastic plan; set plan and planning.elastic, or leave the call out"
            )
        self._built.session.set_replica_state(RoundReplica(self._rounds, others))
        if isinstance(self._rounds.buffers.group, PlaceholderGroup):
            self._rounds.end_round("this process joined the job")

    @property
    def _elastic(self) -> bool:
        return bool(self.config.plan) and self.config.planning.elastic

    def detach(self) -> None:
        """End the round, uncompressed and with everything that is in residuals; plain DDP from the next step on. The
        optimizer's state, which every rank has its own of, becomes its mean over all ranks. Every rank calls this
        between the same two steps."""
        if self._elastic:
            raise ConfigError(
                "detach: plain DDP needs the process group of the start, from which an elastic job may have lost "
                "ranks; save handle.state_dict() after handle.synchronise() and start again without planning.elastic"
            )
        rounds, feedback = self._rounds, self._built.feedback
        if not self._hook.detached:
            rounds.meet("detach() was called")
        # At level `off` an exchange leaves nothing, also where trees keep the memory of residuals.
        flushed = self.config.level == "off" and rounds.exchange.found is not None
        pending = not flushed and any(feedback.pending(one.bucket) for one in rounds.weights.buckets)
        super().detach()
        self._counter.close()
        if rounds.pending or pending:
            rounds.end_round("detach() was called")
        if not self._hook.detached:
            self._counter.equalise(rounds.buffers.group, self.config.transport.timeout)
        self._hook.detach()

    def close(self) -> None:
        """As without local steps. Does not synchronise, because ranks may close at different times: steps since the
        last end of a round stay in this rank's weights only, and a warning says how many. Call `synchronise` or
        `detach` before, on all ranks, to keep them."""
        self._counter.close()
        if self._rounds.pending and not self._open.done:
            _warn_of_unshared(self._rounds)
        super().close()


def _warn_of_unshared(rounds: Rounds) -> None:
    flight = rounds.exchange.flight
    log.warning(
        "gradwire: closed %d steps after the last of its rounds of %s%s; these steps are in this rank's weights only. "
        "Call handle.synchronise() on all ranks before the end to share them",
        max(rounds.unsent) or rounds.in_flight,
        rounds.length,
        ", with an exchange in flight that is not applied" if flight is not None else "",
    )
