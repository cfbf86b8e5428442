"""When to change plans: hysteresis, so that noise does not make the plan flap.

In: the plan in use, a fresh Matrix, the time. Out: a new Plan or None, always with a sentence. The plan in use is
priced on the fresh matrix, so old promises are not compared with new hopes; the new one on a cautious one, where links
not measured lately count for less, so hopes are not compared with measurements. Changed at once when a member or a link
it needs is gone; else for a gain above `gain` and not more often than every `interval` seconds. Each change of late
doubles the gain that the next one must promise: a plan corrects the picture it was made from, and would call for the
next one for ever.
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

# A change is of late for this many intervals; no change is asked to promise more than MOST.
LATELY = 10.0
MOST = 0.5


@dataclass(frozen=True, slots=True)
class ReplanConfig:
    """A change must promise `gain` (0.1: 10 % less time) and wait `interval` seconds after the last one.

    `planner` and `relay` are those that the first plan was made with.
    """

    planner: str = DEFAULT
    gain: float = 0.10
    interval: float = 30.0
    relay: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.gain < 1 or self.interval < 0:
            raise ConfigError(
                f"replan: gain must lie in 0..1 and interval be at least 0, not {self.gain}, {self.interval}"
            )


def price(matrix: Matrix, plan: Plan, job: ReductionJob, relay: bool = True) -> float:
    """What a plan would take on this matrix; infinite if it needs a member or a link that is not there.

    Unless members `relay`, routers do: then no link is missing while there is a way.
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
    """Keeps the plan in use and decides about the next."""

    def __init__(self, plan: Plan, config: ReplanConfig, now: float) -> None:
        self.plan, self._config, self._changed = plan, config, now
        self._changes: list[float] = []

    def consider(self, matrix: Matrix, job: ReductionJob, now: float) -> tuple[Plan | None, str]:
        """A better plan for this matrix, or None; and why. LinkError where members are cut off."""
        current = price(matrix, self.plan, job, self._config.relay)
        waited = now - self._changed
        if math.isfinite(current) and waited < self._config.interval:
            left = Seconds(self._config.interval - waited)
            return None, f"kept plan {self.plan.version}: changed {Seconds(waited)} ago, looked at again in {left}"
        fresh = make_plan(matrix, job, self._config.planner, self.plan.version + 1, self._config.relay)
        if not math.isfinite(current):
            why = f"changed at once: plan {self.plan.version} needs a member or link that is gone"
            return self._take(fresh, now), why
        sure = price(matrix.cautious(), fresh, job, self._config.relay)
        gain = 1 - sure / current if current > 0 else 0.0
        asked = self._asked(now)
        if gain <= asked:
            return None, f"kept plan {self.plan.version}: a new one would gain {gain:.1%}, {asked:.0%} is asked"
        was = Seconds(current)
        return self._take(fresh, now), f"changed: {Seconds(fresh.predicted)} instead of {was}, {gain:.0%} less for sure"

    def _asked(self, now: float) -> float:
        """The gain that a change must promise now."""
        self._changes = [at for at in self._changes if now - at < LATELY * self._config.interval]
        return min(max(MOST, self._config.gain), self._config.gain * 2.0 ** len(self._changes))

    def _take(self, fresh: Plan, now: float) -> Plan:
        self.plan, self._changed = fresh, now
        self._changes.append(now)
        return fresh
