"""Adaptive rounds: rounds whose length the session's decisions set, and which may be synchronous steps instead.

Training begins with synchronous steps. All ranks read the same decision at the same step of the session, so they change
together, between two steps of the optimizer:

    synchronous -> local   after the step at which the decision is in force: the global weights are the model's, the
                           outer optimizer begins without momentum. What compressed gradients left in this rank's
                           residual is added to its own gradient at the next backward (integrations/period_hook.py),
                           and all ranks receive it with the weights
    local -> local         the next round has the new length
    local -> synchronous   at the end of a round. Its exchange should be uncompressed, which sends all residuals (the
                           period controller decides `off` for it); what is left otherwise is sent by an all-reduce of
                           its own. Then the inner optimizers' states become equal

After every round the timer gets the norms of a typical rank's pseudo-gradient and of the mean, from the divergence that
the exchange measured.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from gradwire.compress.error_feedback import ErrorFeedback
from gradwire.local_steps.buffer_average import BufferAverage
from gradwire.local_steps.rounds import Rounds
from gradwire.runtime.governor import Governor
from gradwire.sense.step_timer import StepTimer
from gradwire.types import Decision, RoundNorms

log = logging.getLogger("gradwire")


@dataclass(frozen=True, slots=True)
class RoundControl:
    """What decides, what measures, and what else changes with the mode: `on_change` receives whether steps are local
    from now on."""

    governor: Governor
    timer: StepTimer
    feedback: ErrorFeedback
    on_change: Callable[[bool], None]
    rank: int
    # Seconds that ranks wait for each other at a change, at most.
    timeout: float


class AdaptiveRounds(Rounds):
    """`local`: whether ranks train alone at present."""

    local = False
    control: RoundControl
    _round_steps = 1

    def count_step(self) -> None:
        if self.local:
            super().count_step()
            return
        self.steps += 1
        decision = self.control.governor.decision
        if decision.sync_every > 1:
            self._report(f"local steps, {decision.sync_every} a round", decision)
            self.begin_local(decision.sync_every)

    def begin_local(self, sync_every: int) -> None:
        """The global weights are what the model has now, on all ranks the same."""
        self.adopt()
        self.local, self.sync_every, self.step_in_round = True, sync_every, 0
        self.control.on_change(True)

    def adopt(self) -> None:
        """Take the model's weights and buffers as the global ones; forget the outer optimizer's momentum."""
        self.weights.load_global(self.weights.local_state())
        self.buffers.load_saved(self.buffers.own())
        self.outer.state.clear()

    def end_round(self, reason: str) -> None:
        self._begin_exchange(max(self.unsent))
        super().end_round(reason)
        self._obey()

    def _send(self, fragment: int) -> None:
        self._begin_exchange(self.unsent[fragment])
        super()._send(fragment)
        self._obey()

    def _begin_exchange(self, steps: int) -> None:
        self._round_steps = max(1, steps)
        self.control.timer.round_ended(self._round_steps)

    def _obey(self) -> None:
        """The exchange of a round has ended: report how far ranks went, and follow the decision in force."""
        norms = self._norms()
        if norms is not None:
            self.control.timer.diverged(norms)
        self.step_in_round, decision = 0, self.control.governor.decision
        if decision.sync_every > 1:
            self.sync_every = decision.sync_every
        elif self.local:
            self._report("synchronous steps", decision)
            self._end_local()

    def _norms(self) -> RoundNorms | None:
        """Squared norms of a typical rank's change and of the mean; None where there is nothing to compare."""
        found = self.exchange.found
        if found is None or found.alignment is None:
            return None
        world_size = len(found.ranks) or self.buffers.group.size()
        own = found.norm**2
        return RoundNorms(self._round_steps, own, own * (1 + (world_size - 1) * found.alignment) / world_size)

    def _end_local(self) -> None:
        """Synchronise gradients from the next step on."""
        # After an uncompressed exchange nothing is left, also where trees keep the memory of residuals.
        left = not self.control.governor.decision.level.off
        if left and any(self.control.feedback.pending(one.bucket) for one in self.weights.buckets):
            self._send_residuals()
        self.local = False
        self.control.on_change(False)

    def _send_residuals(self) -> None:
        """One more outer step, by the mean of what is left in the ranks' residuals."""
        for one in self.weights.buckets:
            one.set_gradients()
            one.gradient.zero_()
            self.control.feedback.flush(replace(one.bucket, step=self.session.step), one.gradient)
        changes = {str(one.bucket.index): one.gradient for one in self.weights.buckets}
        mean = BufferAverage(changes, self.buffers.group, self.control.timeout)
        mean.begin()
        mean.finish()
        self.outer.step()
        for one in self.weights.buckets:
            one.follow_global(None, 0.0)

    def _report(self, what: str, decision: Decision) -> None:
        """A change of training is never silent: one line in rank 0's log; the decision is recorded as an event."""
        if self.control.rank == 0:
            log.warning("gradwire: %s after step %d: %s", what, self.steps, decision.reason)
