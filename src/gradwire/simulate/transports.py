"""Simulated transports: what carries a simulated job, and the choice between transports where the job leaves it open.

Every transport has connections of its own, so each has its own model of the network's times; an estimator for each, as
in a real job. A transport that ranks are told to open is open at the next step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Literal

from gradwire.decide.base import Controller, Job
from gradwire.decide.transport_choice import TransportChooser
from gradwire.events import Event, TransportChosen
from gradwire.exchange.select import FootprintTable
from gradwire.network import Network
from gradwire.runtime.transport_decider import CarriedStep, TransportDecider
from gradwire.sense.clock_sync import ClockSync
from gradwire.sense.estimator import Estimator
from gradwire.simulate.timeline import SimulatedStepTimes
from gradwire.simulate.transfer import NetworkTimes
from gradwire.types import Decision, Readiness, StepFacts, TransportKind, View

AUTO_TRANSPORT: Final = "auto"
ChosenTransport = TransportKind | Literal["auto"]


class CarriedBy:
    """One transport of a simulated job."""

    def __init__(self, kind: TransportKind, network: Network, seed: int) -> None:
        self.kind = kind
        self.times = NetworkTimes(network, kind, seed=seed)
        self.footprint = FootprintTable(len(network.ranks), own_wire=kind != "group")
        self.estimator = Estimator()


class SimulatedTransports:
    """`current` carries the step; `reasons` are those of the choices, by step."""

    def __init__(self, chosen: ChosenTransport, network: Network, seed: int) -> None:
        self._network, self._seed = network, seed
        self._known: dict[TransportKind, CarriedBy] = {}
        self._chooser = TransportChooser() if chosen == "auto" else None
        self._prepared: TransportKind = "group"
        self._decider: TransportDecider | None = None
        self.current = self._of("group" if chosen == "auto" else chosen)
        self.reasons: list[TransportChosen] = []

    def use(self, decision: Decision) -> None:
        """Begin a step with what the decision says, where the transport is open to choice."""
        if self._chooser is not None:
            self.current = self._of(decision.transport)
            self._prepared = decision.prepare if decision.prepare != "group" else self._prepared

    def sense(self, timed: SimulatedStepTimes, peers: Sequence[ClockSync]) -> View:
        """What the step showed; loss as acknowledgements count it."""
        view = self.current.estimator.update(timed.observations, peers, timed.end)
        loss = max(flow.loss for flow in self.current.times.flows.values())
        return replace(view, group=replace(view.group, loss=loss))

    def decide(
        self, controller: Controller, job: Job, facts: StepFacts, view: View, last: Decision, step: int, now: float
    ) -> Decision:
        if self._decider is None:
            self._decider = TransportDecider(controller, self._chooser, self)
        ranks = [Readiness(self._prepared)] * job.world_size
        return self._decider.decide(CarriedStep(step, now, job, facts, view, self.current.kind), last, ranks)

    def emit(self, event: Event) -> None:
        if isinstance(event, TransportChosen):
            self.reasons.append(event)

    def _of(self, kind: TransportKind) -> CarriedBy:
        if kind not in self._known:
            self._known[kind] = CarriedBy(kind, self._network, self._seed)
        return self._known[kind]
