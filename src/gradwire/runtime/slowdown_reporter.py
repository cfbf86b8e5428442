"""SlowdownReporter: emits what the level in use costs in steps, as predicted and as noted losses show it.

An event for every level that is used for some steps, and again when what is known of it changes. Only the rank whose
controller decides knows it.
"""

from __future__ import annotations

from typing import Final

from gradwire.events import Priced, Sink
from gradwire.types import Slowdown

# Steps in a row at a level before its price is reported: levels that are measured for a step or two cost nothing.
HELD: Final = 10
# Afterwards, the change of a price that is reported, and the steps between two reports of a level.
CHANGED: Final = 0.02
APART: Final = 50


class SlowdownReporter:
    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._held, self._level = 0, ""
        self._reported: dict[str, Priced] = {}

    def report(self, at: float, step: int, slowdown: Slowdown | None) -> None:
        """Call this with every decision's, in order."""
        if slowdown is None:
            return
        level = str(slowdown.level)
        self._held = self._held + 1 if level == self._level else 1
        self._level = level
        if self._held < HELD or slowdown.predicted <= 1:
            return
        found = (slowdown.realised, slowdown.low, slowdown.high)
        event = Priced(at, step, level, slowdown.predicted, slowdown.used, *found, slowdown.notes)
        last = self._reported.get(level)
        if last is None or (step >= last.step + APART and _differ(last, event)):
            self._reported[level] = event
            self._sink.emit(event)


def _differ(one: Priced, other: Priced) -> bool:
    if (one.realised is None) != (other.realised is None) or (one.notes == 0) != (other.notes == 0):
        return True
    pairs = ((one.predicted, other.predicted), (one.used, other.used), (one.realised or 1.0, other.realised or 1.0))
    return any(abs(after / before - 1) > CHANGED for before, after in pairs)
