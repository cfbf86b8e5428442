"""Training health: whether a run looks ruined, from NaN gradients and from what the user noted. Pure.

A run is called ruined if its last steps had NaN or infinite gradients, if its noted loss is NaN, or if the loss or the
accuracy at the end is clearly worse than before. Single steps with NaN are not: a loss scaler skips those.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from gradwire.events import Event, NonFinite, Noted

# Steps in a row with NaN: a loss scaler that starts too high skips fewer (chosen, not measured).
STEPS: Final = 16
# Notes at the beginning and at the end that are compared, and how many there must be in all.
SAMPLE: Final = 5
ENOUGH: Final = 20
# How much higher the loss, and how much lower the accuracy must be (chosen, not measured).
LOSS_GREW: Final = 1.25
ACCURACY_FELL: Final = 0.6


@dataclass(slots=True)
class TrainingHealth:
    """Adds up what says that training went wrong; memory is bounded."""

    # The last steps with NaN or infinite gradients, without repetitions.
    broken: deque[int] = field(default_factory=lambda: deque(maxlen=STEPS))
    # Notes in a row whose loss was NaN or infinite.
    bad_notes: int = 0

    def take(self, event: Event) -> None:
        if isinstance(event, NonFinite) and event.step not in self.broken:
            self.broken.append(event.step)
        elif isinstance(event, Noted) and "loss" in event.nonfinite:
            self.bad_notes += 1
        elif isinstance(event, Noted) and event.loss is not None:
            self.bad_notes = 0

    def ruin(self, step: int, losses: Sequence[float], accuracies: Sequence[float]) -> str:
        """A sentence on what looks ruined at this step; empty if nothing does."""
        broken = sorted(self.broken)
        if len(broken) == STEPS and broken[-1] >= step - 2 and broken[-1] - broken[0] < 2 * STEPS:
            return f"gradients have been NaN or infinite in every step or nearly so since step {broken[0]} or earlier"
        if self.bad_notes:
            return f"the last {self.bad_notes} noted losses are NaN or infinite"
        return _grew(losses) or _fell(accuracies)


def _grew(losses: Sequence[float]) -> str:
    if len(losses) < ENOUGH:
        return ""
    first, last = statistics.median(losses[:SAMPLE]), statistics.median(losses[-SAMPLE:])
    if first <= 0 or last <= LOSS_GREW * first:
        return ""
    return f"the noted loss rose from {first:.4g} to {last:.4g}"


def _fell(accuracies: Sequence[float]) -> str:
    best = max(accuracies, default=0.0)
    if not accuracies or accuracies[-1] >= ACCURACY_FELL * best:
        return ""
    return f"the noted accuracy fell from {100 * best:.1f} % to {100 * accuracies[-1]:.1f} %"
