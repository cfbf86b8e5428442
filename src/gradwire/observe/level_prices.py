"""Level prices: what levels cost in steps, as predicted and as noted losses show it. Every view shows it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from gradwire.events import Event, Priced
from gradwire.observe.format import clean

MOST: Final = 64
# What a user can do about it.
NOTE: Final = "handle.note(loss) lets gradwire compare it with what happens"


@dataclass(slots=True)
class LevelPrices:
    """Keeps the last `priced` event of each level."""

    levels: dict[str, Priced] = field(default_factory=dict)

    def take(self, event: Event) -> None:
        if isinstance(event, Priced) and (event.level in self.levels or len(self.levels) < MOST):
            self.levels[event.level] = event

    def copy(self) -> LevelPrices:
        return LevelPrices(dict(self.levels))

    def sentence(self, level: str) -> str:
        """ "topk:0.1+int8 costs 8 % more steps (predicted); noted losses show 20 % (5 to 35 %)"; empty if unknown."""
        event = self.levels.get(level)
        if event is None:
            return ""
        return f"{clean(event.level, 60)}: {more(event.predicted)} more steps predicted; {shown(event)}"


def shown(event: Priced) -> str:
    """What noted losses say."""
    if event.realised is not None and event.low is not None and event.high is not None:
        return f"noted losses show {more(event.realised)} ({more(event.low)} to {more(event.high)})"
    return "noted losses do not show it yet" if event.notes else NOTE


def more(price: float) -> str:
    """1.08 -> 8 %."""
    return f"{100 * (price - 1):.0f} %" if price >= 1.095 else f"{100 * (price - 1):.1f} %"
