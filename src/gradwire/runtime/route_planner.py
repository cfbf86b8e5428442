"""RoutePlanner: rank 0's forecast of summing along trees instead of between all ranks, for jobs with plan = "auto".

In: what ranks report of their links, with every pulse, and the steps. Out: the last forecast, and the plan that trees
begin with. Making a plan takes hundreds of milliseconds, so it has a short-lived thread of its own, and happens seldom:
when something is known of every link, when it is known what every level costs, after a change of the network or of the
transport, and then after longer and longer pauses. Where links are about equal, which is cheap to see, no plan is made.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from gradwire.decide.ladder import LADDER, index_of
from gradwire.decide.loss_limit import limited_by_loss
from gradwire.decide.summable_controller import summable
from gradwire.errors import GradwireError
from gradwire.level import Level
from gradwire.plan.job import ReductionJob
from gradwire.plan.matrix import Matrix
from gradwire.plan.measured_network import MeasuredNetwork
from gradwire.plan.route_choice import choose_routes, uniform
from gradwire.plan.tree_forecast import LevelJob
from gradwire.runtime.transport_decider import CarriedStep
from gradwire.sense.site_clusters import find_site_clusters
from gradwire.sites.topology import SiteTopology
from gradwire.tree.accumulator import frame_bytes, mask_bytes
from gradwire.tree.frame_cost import frame_seconds
from gradwire.tree.partition import chunk_for
from gradwire.types import LevelOption, LinkFacts, Plan, RouteForecast, StepFacts, TransportKind, all_reduce_bytes

log = logging.getLogger("gradwire")

# What trees are sent over.
WireKind = Literal["tcp", "ltp"]
# Seconds until the next plan is made after one that was not clearly better; doubled each time, up to LONGEST.
PAUSE: Final = 15.0
LONGEST: Final = 600.0
# Steps over one transport before the first plan: links must have been filled. What was seen of them stays valid when
# the level changes.
SETTLED: Final = 7
JOIN: Final = 10.0


@dataclass(frozen=True, slots=True)
class RouteProposal:
    """The plan that trees begin with, the network that it was made for, the ranks of each site, and the wire."""

    plan: Plan
    network: Matrix
    sites: tuple[tuple[int, ...], ...]
    wire: WireKind = "tcp"


@dataclass(frozen=True, slots=True)
class _Forecast:
    """For the levels that were asked for: seconds of the flat exchange and of trees, by level; None: trees are not
    clearly better at any of them."""

    over: TransportKind
    flat: dict[Level, float]
    trees: dict[Level, float] | None
    reason: str
    work: dict[Level, float] = field(default_factory=dict)

    def obsolete(self, level: Level, options: Sequence[LevelOption]) -> bool:
        """Trees were compared with a flat exchange at a level that is not used and may not be used any more."""
        best = min(self.flat, key=lambda one: self.flat[one])
        known = {level, *(one.level for one in options)}
        return self.trees is None and self.flat[best] > 0 and bool(options) and best not in known

    def at(self, level: Level, over: TransportKind) -> RouteForecast | None:
        # The process group sums an uncompressed gradient by a ring, another transport by shards.
        if level not in self.flat or (level.off and over != self.over):
            return None
        if self.trees is None:
            return RouteForecast(self.flat[level], None, self.reason)
        return RouteForecast(self.flat[level], min(self.trees.values()), self.reason, self.trees, self.work)


class RoutePlanner:
    """`named` are the sites that the user named; without them sites are measured. `wire` is the one that the user
    chose; without it trees use LTP where loss limits TCP."""

    def __init__(self, world_size: int, named: SiteTopology | None = None, wire: WireKind | None = None) -> None:
        self._world_size, self._named, self._wire = world_size, named, wire
        self._reports: dict[tuple[int, int], LinkFacts] = {}
        self._thread: threading.Thread | None = None
        self._forecast: _Forecast | None = None
        self._steps = 0
        # Network changes that each transport's estimates have counted.
        self._changes: dict[TransportKind, int] = {}
        self._over: TransportKind | None = None
        self._begun, self._next, self._pause = -PAUSE, 0.0, PAUSE
        self.proposal: RouteProposal | None = None
        # The last plan was made before it was known what every level costs.
        self._provisional = False
        # Links were about equal when they were looked at last: nothing depends on what levels cost along trees.
        self.uniform = False

    def learn(self, source: int, facts: LinkFacts) -> None:
        """Rank `source` reports its link to another rank."""
        if 0 <= facts.peer < self._world_size and facts.peer != source:
            self._reports[source, facts.peer] = facts

    def sites(self) -> tuple[tuple[int, ...], ...]:
        """The user's sites, or those that round trips and rates show."""
        if self._named is not None:
            return self._named.groups
        trips = {pair: facts.rtprop for pair, facts in self._reports.items() if facts.rtprop}
        rates = {pair: facts.rate for pair, facts in self._reports.items() if facts.rate}
        return find_site_clusters(self._world_size, trips, rates)

    def take(self, step: CarriedStep) -> RouteForecast | None:
        """Call once per step. The forecast for the step's level; None as long as there is none."""
        level = step.facts.level
        if level is None or step.carried_by == "trees":
            return None
        changed = self._changes.setdefault(step.carried_by, step.view.changes) != step.view.changes
        same = step.carried_by == self._over
        self._steps = self._steps + 1 if same and not changed else 0
        if changed:
            self._begun, self._next, self._pause, self._forecast = -PAUSE, 0.0, PAUSE, None
        self._over = step.carried_by
        self._changes[step.carried_by] = step.view.changes
        known = self._forecast.at(level, step.carried_by) if self._forecast is not None else None
        # A level that the last forecast does not have must not wait for the next one for minutes.
        due = step.now >= (self._next if known is not None else min(self._next, self._begun + PAUSE))
        # What TCP gets of a lossy link is not what LTP gets: another transport shows other links.
        due = due or (self._forecast is not None and self._forecast.over != step.carried_by)
        due = due or (self._provisional and _all_known(step))
        due = due or (self._forecast is not None and self._forecast.obsolete(level, step.options or ()))
        if self._steps >= SETTLED and due and not self._planning:
            self._begin(step, level)
        return known

    def close(self) -> None:
        if self._thread is not None:
            self._thread.join(JOIN)

    @property
    def _planning(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _begin(self, step: CarriedStep, level: Level) -> None:
        network = MeasuredNetwork.of(self._world_size, self._reports)
        if not network.complete:
            return
        sites = self.sites()
        why = uniform(network, sites)
        self.uniform = bool(why)
        if not why and step.options is None:
            return  # nothing is known of levels yet
        self._begun, self._next, self._pause = step.now, step.now + self._pause, min(2 * self._pause, LONGEST)
        if why:
            self._forecast = _Forecast(step.carried_by, {level: 0.0}, None, why)
            return
        self._provisional = not _all_known(step)
        levels = (level, *(one.level for one in step.options or () if one.known and one.level != level))
        jobs = [level_job(step, one) for one in levels]
        wire = self._wire or ("ltp" if limited_by_loss(step.view, self._world_size) else "tcp")

        def plan() -> None:
            """On a thread of its own."""
            try:
                choice = choose_routes(network, jobs, sites)
            except GradwireError as error:  # a rank that no link leads to, as far as is known
                log.debug("no plan could be made: %s", error)
                return
            if choice.plan is not None:
                self.proposal = RouteProposal(choice.plan, network.bounds(), sites, wire)
            flat = {one: seconds.flat for one, seconds in zip(levels, choice.levels, strict=True)}
            trees = {summable(one): seconds.trees for one, seconds in zip(levels, choice.levels, strict=True)}
            work = {summable(one): seconds.work for one, seconds in zip(levels, choice.levels, strict=True)}
            better = choice.plan is not None
            self._forecast = _Forecast(step.carried_by, flat, trees if better else None, choice.reason, work)
            log.debug("routes at %s: %s", level, choice.reason)

        self._thread = threading.Thread(target=plan, name="gradwire-routes", daemon=True)
        self._thread.start()


def _all_known(step: CarriedStep) -> bool:
    return all(one.known for one in step.options or ())


def level_job(step: CarriedStep, level: Level) -> LevelJob:
    """What is summed at a level, flat and along trees."""
    ring = level.off and step.carried_by == "group"
    rounds = 2 if mask_bytes(summable(level), _gradient(step) // 4) else 1
    trees = tree_job(step, level)
    frame = frame_seconds(level, trees.chunk // 4, machine_scale(step.facts, step.job.numel))
    return LevelJob(flat_job(step, level), trees, rounds, "ring" if ring else "sharded", frame)


def machine_scale(facts: StepFacts, numel: int) -> float:
    """How much longer work takes on this machine than on the ladder's, by what the last step's codecs took."""
    expected = LADDER[index_of(facts.level)].work * 1e-9 * numel if facts.level is not None else 0.0
    return min(20.0, max(0.2, facts.work / expected)) if expected > 0 and facts.work > 0 else 1.0


def flat_job(step: CarriedStep, level: Level) -> ReductionJob:
    """What the flat exchange sums, in the bytes that each rank sends at this level."""
    nbytes = _gradient(step)
    sent = sum(one.wire_bytes for one in step.job.footprint(level, step.job.buckets))
    ratio = sent / max(1, all_reduce_bytes(nbytes, step.job.world_size))
    return ReductionJob(nbytes, chunk_for(nbytes, ratio), max(ratio, 1e-6))


def tree_job(step: CarriedStep, level: Level) -> ReductionJob:
    """What trees sum: at the nearest level whose payloads they can add, with the indices that members agree on."""
    nbytes, sent = _gradient(step), summable(level)
    ratio = (frame_bytes(sent, nbytes // 4) + mask_bytes(sent, nbytes // 4)) / nbytes
    return ReductionJob(nbytes, chunk_for(nbytes, ratio), ratio)


def _gradient(step: CarriedStep) -> int:
    """Bytes of the gradient as float32 values."""
    return max(4, 4 * sum(bucket.numel for bucket in step.job.buckets))
