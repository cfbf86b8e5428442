"""Way forecast: what a step would take along trees and as a flat exchange, each with the best level that it can use.
Pure.

Time to accuracy is the seconds of a step times the steps that its level needs. Trees cannot sum every level: low rank
not at all, top-k only as a shared mask, whose indices travel first. So a way that is quicker at one level may be slower
at the best level of each, and the two are compared there:

    1. flat: every level that the controller may use, as it predicts it (or measured it)
    2. trees: the same levels as trees send them, at the price of that. The forecast's seconds are corrected by what it
       is wrong by for the exchange in use, the processor time of hops comes on top, and of an exchange as long as the
       present one the same share stays hidden behind compute
    3. for the levels that may be used now, and for those of the time after the warm-up: both must speak for a change
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gradwire.decide.summable_controller import summable
from gradwire.level import Level
from gradwire.types import LevelOption, RouteForecast, StepFacts


@dataclass(frozen=True, slots=True)
class WayForecast:
    """The best level of a way: the level as it is sent, the seconds of a step, and how many times more steps it
    needs."""

    level: Level
    seconds: float
    price: float = 1.0

    @property
    def to_accuracy(self) -> float:
        """Seconds per unit of training progress."""
        return self.seconds * self.price


@dataclass(frozen=True, slots=True)
class BestWays:
    """The best of a way with levels that may be used now, and with those of the time after the warm-up."""

    now: WayForecast
    later: WayForecast


def flat_ways(options: Sequence[LevelOption]) -> BestWays:  # 1
    return _best(options, flat_forecasts(options))


def flat_forecasts(options: Sequence[LevelOption], saved: float = 0.0) -> tuple[WayForecast, ...]:
    """Of every level; `saved`: seconds of a step's waiting that another flat transport would save. A price that is not
    known yet is infinite."""
    prices = [one.price if one.known else math.inf for one in options]
    seconds = [one.seconds - min(saved, one.exposed) for one in options]
    return tuple(WayForecast(one.level, *rest) for one, *rest in zip(options, seconds, prices, strict=True))


def tree_ways(
    options: Sequence[LevelOption], routes: RouteForecast, facts: StepFacts, meeting: float
) -> BestWays | None:  # 2
    """`meeting` is the time for which transfers of the present exchange wait for their round trips. None where no level
    is forecast."""
    sent, ways = [], []
    for one in options:
        level = summable(one.level)
        if level not in routes.by_level or one.summed is None or one.level.select == "lowrank":
            continue
        exchange = corrected(routes.by_level[level], routes.flat, facts.busy - meeting) + routes.work.get(level, 0.0)
        sent.append(one)
        ways.append(WayForecast(level, one.seconds - one.exposed + _exposed(exchange, facts), one.summed))
    return _best(sent, ways) if ways else None


def corrected(forecast: float, flat: float, took: float) -> float:
    """A forecast for trees, where that for the flat exchange is known to be wrong: `flat` seconds were forecast, and it
    `took` others. A forecast of too much time is scaled down, of too little has something added."""
    took = max(0.0, took)
    return forecast * min(1.0, took / flat) + max(0.0, took - flat) if flat > 0 else forecast


def relative_gain(flat: BestWays, trees: BestWays) -> float:  # 3
    """The share of the time to accuracy that trees would save, now and after the warm-up: the lesser of the two."""
    now, later = trees.now.to_accuracy / flat.now.to_accuracy, trees.later.to_accuracy / flat.later.to_accuracy
    return 1 - max(now, later)


def _exposed(exchange: float, facts: StepFacts) -> float:
    """How long training waits for an exchange that takes so long; a shorter one hides less of itself."""
    hidden = max(0.0, facts.busy - facts.exposed)
    return max(0.0, exchange - hidden * min(1.0, exchange / facts.busy)) if facts.busy > 0 else exchange


def _best(options: Iterable[LevelOption], ways: Iterable[WayForecast]) -> BestWays:
    pairs = list(zip(options, ways, strict=True))
    later = min((way for _, way in pairs), key=lambda way: way.to_accuracy)
    now = min((way for one, way in pairs if one.now), key=lambda way: way.to_accuracy, default=later)
    return BestWays(now, later)
