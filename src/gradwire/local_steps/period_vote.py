"""Period vote: how all ranks of an elastic plan know the next round's number of local steps.

The coordinator of the plan proposes a number (decide/period_controller.py). It travels in the small values that every
round averages beside the weights (local_steps/tree_round.py), so it is known exactly to those that have the round's new
weights, on all of them the same: also after a step that was repeated without a lost rank, and on a process that joined
in it.

In: this rank's two values, the proposal and 1, or 0 and 0 without a proposal. Out: their means over the ranks that
took part. Without any proposal (the coordinator was lost in this round) the number stays; where two ranks took
themselves for the coordinator, it is the one that is nearest to their mean.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gradwire.decide.period import PERIODS

# Values that a rank contributes.
VALUES: Final = 2


class PeriodVote:
    """`proposal` is this rank's, None unless it coordinates the plan. A round's votes are counted by `result`."""

    def __init__(self, proposal: Callable[[], int | None]) -> None:
        self._proposal = proposal

    def cast(self) -> list[float]:
        """This rank's values for the exchange that begins."""
        proposal = self._proposal()
        return [0.0, 0.0] if proposal is None else [float(proposal), 1.0]

    @staticmethod
    def result(means: list[float], sync_every: int) -> int:
        """The local steps of the next round, after one of `sync_every`."""
        total, share = means
        if share <= 0:
            return sync_every
        return min(PERIODS, key=lambda every: (abs(every - total / share), every))
