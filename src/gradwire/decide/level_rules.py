"""Level rules: which levels `auto` may use, now or after the warm-up, and what it says of them to who chooses routes.

In: the prices of levels for this job, the accuracy guard, and what the user permits. Out: yes or no for a level, and
LevelOptions. Dense levels and low rank have prices from the start; those of sparse levels are known after some steps,
and until then a level that seems too dear may turn out to be permitted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gradwire.decide.accuracy_guard import AccuracyGuard
from gradwire.decide.cost_model import StepPrediction
from gradwire.decide.job_prices import JobPrices
from gradwire.decide.lossiness import at_most
from gradwire.decide.summable_controller import summable
from gradwire.decide.warmup import allows
from gradwire.level import Level
from gradwire.types import LevelOption


@dataclass(frozen=True, slots=True)
class LevelRules:
    """`lossiest` is the user's cap, `extra_steps` the share of steps that lossiness may cost."""

    prices: JobPrices
    guard: AccuracyGuard
    lossiest: Level | None
    extra_steps: float

    def permits(self, level: Level, price: float, step: int) -> bool:
        """Whether this step may use a level of this price."""
        return self._lasting(level, price) and allows(step, level)

    def price(self, level: Level) -> float | None:
        """None where it is not known, dearer than permitted, or forbidden."""
        price = self.prices.of(level)
        return price if self._known(level) and self._lasting(level, price) else None

    def options(self, predictions: Iterable[StepPrediction], step: int) -> tuple[LevelOption, ...]:
        """The levels that are permitted, and those that may turn out to be."""
        return tuple(
            self._option(one, step)
            for one in predictions
            if self._lasting(one.rung.level, one.price if self._known(one.rung.level) else 1.0)
        )

    def _option(self, one: StepPrediction, step: int) -> LevelOption:
        level, known = one.rung.level, self._known(one.rung.level)
        now, summed = self.permits(level, one.price, step), self._summed(level) if known else None
        return LevelOption(level, one.step, one.exposed, one.price, now, summed, known)

    def _known(self, level: Level) -> bool:
        return self.prices.settled or not level.sparse

    def _lasting(self, level: Level, price: float) -> bool:
        """Whether a level is permitted when the warm-up is over."""
        capped = self.lossiest is not None and not at_most(level, self.lossiest)
        return level.off or not (capped or price > 1 + self.extra_steps or not self.guard.allows(level))

    def _summed(self, level: Level) -> float | None:
        """The price of what trees send in the place of a level; None where that costs more than is permitted."""
        price = self.prices.of(summable(level))
        return price if price <= 1 + self.extra_steps or level.off else None
