"""Job prices: what each level costs one job in steps. Predicted from its gradient, corrected by its losses. Pure.

decide/price.py predicts, decide/realised_price.py compares what was predicted with the course of the losses that the
user notes. While losses say little, which is most of the time, the corrected price is the predicted one.
"""

from __future__ import annotations

from gradwire.decide.price import PriceList
from gradwire.decide.realised_price import RealisedPrice
from gradwire.level import Level
from gradwire.types import Slowdown, StepFacts


class JobPrices:
    """Call `take` once per step; `shares` are those of the sparse levels whose prices are wanted."""

    def __init__(self, shares: tuple[float, ...]) -> None:
        self._predicted = PriceList(shares)
        self._realised = RealisedPrice()

    def take(self, ran: Level, facts: StepFacts) -> None:
        """A step ran at this level."""
        self._predicted.take(facts.sample, facts.adaptive)
        self._predicted.take_residual(ran, facts.residual)
        self._realised.take(facts.loss, ran, self._predicted.of(ran), facts.rate)

    @property
    def settled(self) -> bool:
        """Whether prices are those of this job's gradient."""
        return self._predicted.settled

    def of(self, level: Level) -> float:
        """How many times more steps the level needs than uncompressed training."""
        return self._realised.corrected(level, self._predicted.of(level))

    def slowdown(self, level: Level) -> Slowdown:
        """The same, as predicted and as realised."""
        return self._realised.slowdown(level, self._predicted.of(level))
