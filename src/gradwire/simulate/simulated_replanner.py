"""Simulated replanner: the shipped planner of trees that are in use, with what their members would measure.

In: the times of trees that carry the steps, and virtual time. Out: a better plan, or None. As in a running job, members
report the links that trees use, links that carry nothing are probed from time to time, and the coordinator plans again
(tree/plan_manager.py). Planning takes no virtual time, and a probe none of its link's.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from gradwire.plan.job import ReductionJob
from gradwire.plan.matrix import Matrix
from gradwire.plan.membership.link_estimates import LEAST_BYTES, KnownNetwork, LinkObservation
from gradwire.plan.membership.replan import ReplanConfig, Replanner
from gradwire.simulate.transfer import Pair
from gradwire.simulate.tree_times import TreeTimes
from gradwire.tree.link_monitor import BUSY
from gradwire.tree.plan_manager import CHECK, REPORT, STALE
from gradwire.types import Plan


class SimulatedReplanner:
    """For trees that were opened for `network`, at the time `now`, to sum `job`."""

    def __init__(self, plan: Plan, network: Matrix, job: ReductionJob, now: float) -> None:
        self._network, self._job = KnownNetwork(network), job
        self._network.begin(now)
        self._replanner = Replanner(plan, ReplanConfig(plan.planner), now)
        self._members = range(network.size)
        self._sent: Counter[Pair] = Counter()
        self._checked = now

    def take(self, times: TreeTimes, now: float) -> Plan | None:
        """Call once per step. What the step's trees showed; a better plan where that asks for one."""
        self._report(times, now)
        if now - self._checked < CHECK:
            return None
        self._checked = now
        self._probe(times, now)
        matrix, news = self._network.matrix(self._members, now), self._network.links.news
        return self._replanner.consider(matrix, self._job, now, news)[0]

    def _report(self, times: TreeTimes, now: float) -> None:
        """Links of trees; short messages add up."""
        self._sent.update(times.sent)
        times.sent.clear()
        for pair, facts in times.report_links().items():
            route = times.plan.routes.get(pair, pair)
            if self._sent[pair] < LEAST_BYTES:
                continue
            del self._sent[pair]
            rate = facts.rate or facts.floor
            for source, destination in pairwise(route):
                self._observe((source, destination), rate, times, now, busy=bool(facts.rate))

    def _probe(self, times: TreeTimes, now: float) -> None:
        for pair in self._network.links.to_probe(self._members, now, STALE):
            self._network.links.probe_requested(*pair, now)
            rate = times.probe(pair, now, LEAST_BYTES)
            self._observe(pair, rate, times, now, busy=BUSY * rate * REPORT <= LEAST_BYTES)

    def _observe(self, pair: Pair, rate: float, times: TreeTimes, now: float, *, busy: bool) -> None:
        trip = times.flows[pair].round_trip
        self._network.links.observe(LinkObservation(*pair, rate, trip, LEAST_BYTES, now, busy))
