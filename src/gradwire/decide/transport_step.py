"""Transport step: what the transport chooser sees of a step, and what it answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gradwire.level import Level
from gradwire.types import LevelOption, RouteForecast, StepFacts, TransportKind, View

# Latencies in a row of a step's exchange over a transport, at the present level.
HopsOver = Callable[[TransportKind], int]
# How many times more steps a level needs; None where that is not known.
PriceOf = Callable[[Level], float | None]


@dataclass(frozen=True, slots=True)
class TransportChoice:
    """What carries the coming steps, and what to open meanwhile ("group": nothing); the reason is set on a change. A
    trial holds the level."""

    use: TransportKind
    prepare: TransportKind = "group"
    reason: str = ""
    level: Level | None = None


@dataclass(frozen=True, slots=True)
class TransportStep:
    """One step: what carried it, its level and facts, the view of that transport's network, and the number of ranks.
    `steady`: the steps that follow have the same level, and are no local steps. `routes` is what trees would take,
    where that is known. `options` are the levels that may be used, as the controller predicts them over what carried
    the step; empty for a controller that predicts nothing. `price_of` is what it knows of a level between all ranks."""

    ran: TransportKind
    level: Level
    facts: StepFacts
    view: View
    world_size: int
    hops: HopsOver
    steady: bool = True
    routes: RouteForecast | None = None
    options: tuple[LevelOption, ...] = ()
    price_of: PriceOf = lambda level: None

    @property
    def price(self) -> float:
        """How many times more steps its level needs; 1 where that is not known."""
        return next((one.price for one in self.options if one.level == self.level), 1.0)

    def known_options(self, typical: float) -> tuple[LevelOption, ...]:
        """The levels of which everything is known; where there are none, the step's own, which takes `typical`
        seconds."""
        known = tuple(one for one in self.options if one.known)
        return known or (LevelOption(self.level, typical, self.facts.exposed),)

    @property
    def provisional(self) -> bool:
        """Whether more levels may be permitted than are known to be."""
        return not all(one.known for one in self.options)


@dataclass(frozen=True, slots=True)
class Candidate:
    """What to try instead, at which level and at which price in steps, and why. `gain` is the share of a step that is
    predicted to be saved, 0 where steps themselves show that something is wrong."""

    kind: TransportKind
    level: Level
    price: float
    why: str
    gain: float = 0.0
