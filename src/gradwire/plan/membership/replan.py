"""Replan: decides when to change plans, with hysteresis against noise.

In: the current plan, a new Matrix, the time. Out: a new Plan or None, always with a reason. The current plan's cost is
predicted on the new matrix. The new plan's cost is predicted on a cautious one, where links not measured lately count
for less, so that estimates are not preferred to measurements. The plan changes at once when a member or a link that it
needs is gone; otherwise for a gain above `gain`, at most every `interval` seconds. Each recent change doubles the gain
that the next one requires, because a new plan changes what is measured and could trigger changes for ever. A plan that
was made from lower bounds is provisional: what becomes known of links for the first time can only do so a few times, so
a change for that neither waits nor counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from gradwire.errors import ConfigError
from gradwire.plan.job import ReductionJob
from gradwire.plan.matrix import Matrix
from gradwire.plan.model.cost import forecast
from gradwire.plan.model.load import lay_out
from gradwire.plan.model.routes import Routes
from gradwire.plan.planners.registry import DEFAULT, make_plan
from gradwire.plan.trees import sources_of
from gradwire.types import Plan, Tree
from gradwire.units import Seconds

# A change is recent for this many intervals; no change requires a gain above MAX_GAIN.
RECENT_INTERVALS = 10.0
MAX_GAIN = 0.5


@dataclass(frozen=True, slots=True)
class ReplanConfig:
    """A change needs a predicted `gain` (0.1: 10 % less time) and `interval` seconds since the last one.

    `planner` and `relay` are those of the first plan.
    """

    planner: str = DEFAULT
    gain: float = 0.10
    interval: float = 30.0
    relay: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.gain < 1 or self.interval < 0:
            raise ConfigError(
                f"planning: gain must be from 0 to below 1 and interval at least 0 s, "
                f"but they are {self.gain:g} and {self.interval:g}"
            )


def predicted_seconds(matrix: Matrix, plan: Plan, job: ReductionJob, relay: bool = True) -> float:
    """Predicted seconds of a plan on this matrix; infinite if it needs a member or a link that does not exist.

    Without `relay` by members, routers forward: then a link exists wherever there is a route.
    """
    place = {member: index for index, member in enumerate(matrix.members)}
    if any(tree.parents.keys() != place.keys() for tree in plan.trees):
        return math.inf
    trees = [
        Tree(
            place[tree.root],
            {place[child]: place[parent] for child, parent in tree.parents.items()},
            tree.share,
            {place[child]: place[source] for child, source in tree.sources.items()},
        )
        for tree in plan.trees
    ]
    for tree in trees if relay else ():
        edges = {*tree.parents.items(), *((source, child) for child, source in sources_of(tree).items())}
        for source, destination in edges:
            ends = matrix.members[source], matrix.members[destination]
            if source != destination and ends not in plan.routes and not matrix.rate[source, destination] > 0:
                return math.inf
    for route in plan.routes.values():
        if any(not matrix.rate[place[a], place[b]] > 0 for a, b in pairwise(route)):
            return math.inf
    routes = Routes(matrix)
    return forecast(matrix, lay_out(matrix, trees, job, routes), job, routes).seconds


class Replanner:
    """Holds the current plan and decides about the next."""

    def __init__(self, plan: Plan, config: ReplanConfig, now: float) -> None:
        self.plan, self._config, self._changed = plan, config, now
        self._changes: list[float] = []
        self._news = 0

    def consider(self, matrix: Matrix, job: ReductionJob, now: float, news: int = 0) -> tuple[Plan | None, str]:
        """A better plan for this matrix, or None; and the reason. LinkError if a member cannot be reached. `news` are
        those of the links (`Awareness.news`)."""
        fresh_news, self._news = news > self._news, news
        current = predicted_seconds(matrix, self.plan, job, self._config.relay)
        waited = now - self._changed
        early = waited < self._config.interval
        if math.isfinite(current) and early and not fresh_news:
            left = Seconds(self._config.interval - waited)
            return None, f"kept plan {self.plan.version}: changed {Seconds(waited)} ago, next check in {left}"
        fresh = make_plan(matrix, job, self._config.planner, self.plan.version + 1, self._config.relay)
        if not math.isfinite(current):
            why = f"changed at once: plan {self.plan.version} needs a member or link that is lost"
            return self._take(fresh, now), why
        cautious = predicted_seconds(matrix.cautious(), fresh, job, self._config.relay)
        gain = 1 - cautious / current if current > 0 else 0.0
        required = self._required_gain(now)
        if gain <= required:
            return None, f"kept plan {self.plan.version}: a new one saves {gain:.1%}, a change requires {required:.0%}"
        was = Seconds(current)
        return self._take(
            fresh, now, counts=not early
        ), f"changed: {Seconds(fresh.predicted)} instead of {was}, at least {gain:.0%} less"

    def _required_gain(self, now: float) -> float:
        """The gain that a change requires now."""
        self._changes = [at for at in self._changes if now - at < RECENT_INTERVALS * self._config.interval]
        return min(max(MAX_GAIN, self._config.gain), self._config.gain * 2.0 ** len(self._changes))

    def _take(self, fresh: Plan, now: float, *, counts: bool = True) -> Plan:
        self.plan, self._changed = fresh, now
        if counts:
            self._changes.append(now)
        return fresh
