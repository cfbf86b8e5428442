"""Voted rounds: rounds whose length gradwire chooses, along an elastic plan whose ranks may be lost and rejoin.

Steps are always local: a rank joins at the end of a round, and synchronous steps have none. The number of steps of
the next round comes with the weights of this one (local_steps/period_vote.py); a process that joins received this one's
with the state that was sent to it (local_steps/round_replica.py), which counts where nobody proposed another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradwire.local_steps.adaptive_rounds import AdaptiveRounds
from gradwire.local_steps.tree_round import TreeRound
from gradwire.runtime.plan_governor import PlanGovernor

LENGTH = "sync_every"


class VotedRounds(AdaptiveRounds):
    """`shared` has the votes of a round."""

    local = True
    shared: TreeRound

    def state(self) -> dict[str, Any]:
        return {LENGTH: self.sync_every}

    def load_state(self, states: Sequence[Mapping[str, Any]]) -> None:
        self._follow(int(states[0].get(LENGTH, self.sync_every)))

    def _obey(self) -> None:
        self._follow(self.shared.vote.result(self.shared.votes, self.sync_every))
        super()._obey()

    def _follow(self, sync_every: int) -> None:
        governor = self.control.governor
        assert isinstance(governor, PlanGovernor)
        self.sync_every = sync_every
        governor.follow(sync_every)
