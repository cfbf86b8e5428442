"""Simulated transports: what carries a simulated job, and the choice between transports and trees where the job leaves
it open.

Every transport has connections of its own, so each has its own model of the network's times; an estimator for each, as
in a real job. A transport that ranks prepare is open at the next step; so are trees, with the plan that rank 0
has then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Literal

from gradwire.decide.base import Controller, FootprintOf, Job
from gradwire.decide.transport_choice import TransportChooser
from gradwire.events import Event, TransportChosen
from gradwire.exchange.select import FootprintTable
from gradwire.level import Level
from gradwire.network import Network
from gradwire.runtime.transport_decider import CarriedStep, TransportDecider
from gradwire.sense.clock_sync import ClockSync
from gradwire.sense.estimator import Estimator
from gradwire.simulate.simulated_replanner import SimulatedReplanner
from gradwire.simulate.simulated_routes import AUTO_PLAN, SimulatedRoutes
from gradwire.simulate.timeline import SimulatedStepTimes
from gradwire.simulate.transfer import NetworkTimes
from gradwire.simulate.tree_times import TreeTimes, tree_traffic
from gradwire.simulate.workers import BucketTraffic
from gradwire.types import Decision, Plan, Readiness, StepFacts, TransportKind, View

AUTO_TRANSPORT: Final = "auto"
ChosenTransport = TransportKind | Literal["auto"]
WIRES: Final[tuple[TransportKind, ...]] = ("tcp", "ltp")


class CarriedBy:
    """One transport of a simulated job."""

    def __init__(self, kind: TransportKind, times: NetworkTimes, estimator: Estimator | None = None) -> None:
        self.kind, self.times = kind, times
        own = kind != "group"
        self.footprint: FootprintOf = FootprintTable(times.world_size, own_wire=own)
        if isinstance(times, TreeTimes):
            self.footprint = times.footprint
        self.estimator = estimator or Estimator()

    def traffic(self, traffic: tuple[BucketTraffic, ...], level: Level) -> tuple[BucketTraffic, ...]:
        """What a step's buckets move: along trees not what they move between all ranks."""
        if not isinstance(self.times, TreeTimes):
            return traffic
        self.times.handled(level, sum(one.bucket.numel for one in traffic))
        return tree_traffic(traffic, level)


class SimulatedTransports:
    """`current` carries the step; `reasons` are those of the choices, by step. `plan` is "", "auto" or a planner
    whose trees carry every step."""

    def __init__(self, chosen: ChosenTransport, network: Network, seed: int, plan: str = "") -> None:
        self._network, self._seed = network, seed
        self._known: dict[TransportKind, CarriedBy] = {}
        first: TransportKind = "group" if chosen == AUTO_TRANSPORT else chosen
        self.routes = SimulatedRoutes(network, first) if plan and len(network.ranks) > 2 else None
        offered = WIRES if chosen == AUTO_TRANSPORT and plan in ("", AUTO_PLAN) else ()
        if plan == AUTO_PLAN and self.routes is not None:
            offered = (*offered, "trees")
        self._chooser = TransportChooser(offered, first) if offered else None
        self._prepared: TransportKind = "group"
        self._decider: TransportDecider | None = None
        self._planner = plan if plan != AUTO_PLAN else ""
        self.current = self._of("trees" if self._planner and self.routes is not None else first)
        self.reasons: list[TransportChosen] = []
        # Plans that replaced the one that trees were opened with, by step.
        self.replanned: list[tuple[int, Plan]] = []
        self._replanner: SimulatedReplanner | None = None

    @property
    def along_trees(self) -> bool:
        """Whether trees carry every step."""
        return bool(self._planner) and self.current.kind == "trees"

    def use(self, decision: Decision) -> None:
        """Begin a step with what the decision says, where the transport is open to choice."""
        if self._chooser is None:
            return
        self.current = self._of(decision.transport)
        self._prepared = decision.prepare if decision.prepare != "group" else self._prepared
        if "trees" not in (decision.transport, decision.prepare):
            self._known.pop("trees", None)  # trees that were left are closed; others are opened for another plan
            self._replanner = None

    def sense(self, timed: SimulatedStepTimes, peers: Sequence[ClockSync]) -> View:
        """What the step showed; loss as acknowledgements count it."""
        if self.routes is not None and self.current.kind != "trees":
            self.routes.learn(self.current.times)
        view = self.current.estimator.update(timed.observations, peers, timed.end)
        loss = max(flow.loss for flow in self.current.times.flows.values())
        return replace(view, group=replace(view.group, loss=loss))

    def decide(
        self, controller: Controller, job: Job, facts: StepFacts, view: View, last: Decision, step: int, now: float
    ) -> Decision:
        if self._decider is None:
            self._decider = TransportDecider(controller, self._chooser, self, self.routes)
        ranks = [Readiness(self._prepared)] * job.world_size
        carried = CarriedStep(step, now, job, facts, view, self.current.kind)
        self._plan_again(carried)
        return self._decider.decide(carried, last, ranks)

    def emit(self, event: Event) -> None:
        if isinstance(event, TransportChosen):
            self.reasons.append(event)

    def _plan_again(self, step: CarriedStep) -> None:
        """Trees in use that the planner may change: the next step follows its new plan."""
        trees = self.current.times
        if self.routes is None or self._planner or not isinstance(trees, TreeTimes):
            return
        if self._replanner is None:
            self._replanner = self.routes.replanner(step)
            return
        plan = self._replanner.take(trees, step.now)
        if plan is not None:
            trees.follow(plan, step.now)
            self._known["trees"] = CarriedBy("trees", trees, self.current.estimator)
            self.replanned.append((step.step, plan))

    def _of(self, kind: TransportKind) -> CarriedBy:
        if kind not in self._known:
            self._known[kind] = CarriedBy(kind, self._times(kind))
        return self._known[kind]

    def _times(self, kind: TransportKind) -> NetworkTimes:
        if kind != "trees" or self.routes is None:
            return NetworkTimes(self._network, kind, seed=self._seed)
        plan, wire = self.routes.opened(self._planner)
        return TreeTimes(self._network, plan, wire, seed=self._seed)
