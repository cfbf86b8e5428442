"""Simulated routes: the shipped route planner of a simulated job, with what its ranks would report of their links.

In: the times of the transport in use. Out: forecasts of trees, and the plan that they are opened with. The planner's
thread is waited for, so that a simulation is repeatable.
"""

from __future__ import annotations

from gradwire.network import Network
from gradwire.plan.job import ReductionJob
from gradwire.plan.measured_network import MeasuredNetwork
from gradwire.plan.planners.registry import make_plan
from gradwire.runtime.route_planner import RoutePlanner, WireKind, tree_job
from gradwire.runtime.transport_decider import CarriedStep
from gradwire.simulate.simulated_replanner import SimulatedReplanner
from gradwire.simulate.transfer import NetworkTimes
from gradwire.types import Plan, RouteForecast, TransportKind

AUTO_PLAN = "auto"
# Bytes of the gradient that a planner's own plan is made for, where nothing of the job is known yet.
TYPICAL = 4 << 20


class SimulatedRoutes:
    """`first` is what the job begins with; trees use that wire if it is one."""

    def __init__(self, network: Network, first: TransportKind) -> None:
        self._network = network
        self._wire: WireKind | None = first if first in ("tcp", "ltp") else None
        self._planner = RoutePlanner(len(network.ranks), wire=self._wire)
        self.sites: tuple[tuple[int, ...], ...] = ()

    @property
    def uniform(self) -> bool:
        return self._planner.uniform

    def learn(self, times: NetworkTimes) -> None:
        """What acknowledgements of the last exchange showed."""
        for (source, _), facts in times.report_links().items():
            self._planner.learn(source, facts)

    def take(self, step: CarriedStep) -> RouteForecast | None:
        """The forecast, as the chooser asks for it."""
        found = self._planner.take(step)
        self._planner.close()
        return found

    def opened(self, planner: str = "") -> tuple[Plan, WireKind]:
        """The plan of trees that are opened now, and their wire: rank 0's proposal, or one of the planner named."""
        proposal = self._planner.proposal
        if planner or proposal is None:
            return self._measured_plan(planner or "loadaware"), self._wire or "tcp"
        return proposal.plan, proposal.wire

    def replanner(self, step: CarriedStep) -> SimulatedReplanner | None:
        """For trees that were opened with the proposal; they carried this step."""
        proposal, level = self._planner.proposal, step.facts.level
        if proposal is None or level is None:
            return None
        return SimulatedReplanner(proposal.plan, proposal.network, tree_job(step, level), step.now)

    def _measured_plan(self, planner: str) -> Plan:
        """For the network that transfers between all ranks show."""
        times = NetworkTimes(self._network, "tcp")
        times.direct(0.0, TYPICAL)
        network = MeasuredNetwork.of(times.world_size, times.report_links())
        return make_plan(network.cautious(), ReductionJob(TYPICAL), planner)
