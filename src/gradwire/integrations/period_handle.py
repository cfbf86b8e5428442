"""Period handle: the handle of a model that was attached with `sync_every = "auto"`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradwire.config import Config
from gradwire.integrations.handle import Handle
from gradwire.integrations.local_handle import LocalParts, LocalStepsHandle
from gradwire.integrations.period_hook import PeriodHook
from gradwire.local_steps import round_state
from gradwire.local_steps.adaptive_rounds import AdaptiveRounds
from gradwire.local_steps.step_counter import StepCounter
from gradwire.runtime.adaptive_governor import AdaptiveGovernor
from gradwire.runtime.builder import BuiltSession
from gradwire.runtime.loss_scaling import Scaler

# In the state of the rounds: local steps a round; 0 while steps are synchronous.
LENGTH = "sync_every"


@dataclass(frozen=True, slots=True)
class PeriodParts:
    """What the handle has beside its session."""

    rounds: AdaptiveRounds
    counter: StepCounter
    hook: PeriodHook


class PeriodHandle(LocalStepsHandle):
    """As with a fixed `sync_every` while steps are local, as without while they are synchronous."""

    def __init__(self, built: BuiltSession, config: Config, parts: PeriodParts) -> None:
        super().__init__(built, config, LocalParts(parts.rounds, parts.counter, parts.hook))
        self._adaptive, self._period_hook = parts.rounds, parts.hook

    @property
    def sync_every(self) -> int:
        """Local steps a round at present; 1: gradients are synchronised at every step."""
        return self._adaptive.sync_every if self._adaptive.local else 1

    @property
    def found(self) -> Scaler | None:
        """What a search of the training loop finds is used by both kinds of steps."""
        return None

    @found.setter
    def found(self, scaler: Scaler | None) -> None:
        self._built.session.scaling.found = scaler
        self._counter.found = scaler

    def follow(self, scaler: Scaler) -> None:
        """Use this loss scaler: residuals of gradients follow its scale, and steps that it skips count."""
        self._built.session.scaling.follow(scaler)
        self._counter.follow(scaler)

    def rescale_residuals(self, factor: float) -> None:
        if not self._adaptive.local:
            Handle.rescale_residuals(self, factor)

    def state_dict(self) -> dict[str, Any]:
        if not self._adaptive.local:
            self._adaptive.adopt()
        state = super().state_dict()
        state[round_state.KEY][LENGTH] = self._adaptive.sync_every if self._adaptive.local else 0
        return state

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        super().load_state_dict(state)
        first = state if isinstance(state, Mapping) else state[0]
        length = int(first[round_state.KEY].get(LENGTH, 0))
        self._adaptive.local = length > 1
        self._adaptive.sync_every = max(1, length)
        self._period_hook.change_mode(length > 1)
        if length > 1:
            self._period_hook.skip_residuals()
        if isinstance(self._built.governor, AdaptiveGovernor):
            self._built.governor.resume_period(max(1, length))

    def detach(self) -> None:
        if self._adaptive.local:
            super().detach()
            self._adaptive.local = False
        else:
            Handle.detach(self)
            self._counter.close()
