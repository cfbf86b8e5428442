"""Training in virtual time: real gradients and codecs, the shipped controllers, a simulated network and clock.

    1. the workers compute a step at the level in force and exchange it for real (simulate/workers.py)
    2. the timeline says how long that step takes on the network (simulate/timeline.py)
    3. the shipped estimator sees what every rank would have measured; the shipped controller decides, and where the
       transport is open to choice the shipped chooser (simulate/transports.py)
    4. the decision is in force two steps later, as with pulses; where it would arrive too late for that, three
       (decide/decision_timing.py)

So loss against seconds is exact for the model of the network, repeatable, and as fast as the processor trains. Jobs
with local steps: simulate/local_training.py.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from gradwire.config import OuterConfig
from gradwire.decide.base import Controller, FootprintOf, Job
from gradwire.decide.decision_timing import SAFE, DecisionTiming
from gradwire.decide.fixed import Fixed
from gradwire.decide.initial_level import initial_level
from gradwire.decide.registry import is_controller, make_controller
from gradwire.decide.summable_controller import SummableController
from gradwire.level import Level
from gradwire.network import Network
from gradwire.runtime.governor import merge
from gradwire.sense.clock_sync import ClockSync
from gradwire.simulate.tasks import TrainingTask
from gradwire.simulate.timeline import SimulatedStepTimes, Timeline
from gradwire.simulate.transfer import NetworkTimes
from gradwire.simulate.transports import ChosenTransport, SimulatedTransports
from gradwire.simulate.workers import Workers
from gradwire.tree.accumulator import check_summable
from gradwire.types import Bucket, Decision, StepFacts, TransportKind, View

# Seconds that rank 0's controller takes, with the threads' changes on both ranks: chosen, a few times what it takes on
# an idle processor.
DECIDING: Final = 0.005
# Rounds of the startup probe: what a rank sends in all.
PROBE_SIZES: Final = (64 * 1024, 256 * 1024, 1024 * 1024)


@dataclass(frozen=True, slots=True)
class SimulatedStep:
    """One step of the job: when it ended, at which level, the workers' mean loss, the held-out loss where evaluated,
    the believed bandwidth, and why the next level was chosen. `sync_every` is 1 for a synchronous step."""

    step: int
    seconds: float
    level: Level
    loss: float
    held_out: float | None
    bandwidth: float | None
    reason: str
    guarded: bool
    facts: StepFacts
    sync_every: int = 1
    transport: TransportKind = "group"


@dataclass(frozen=True, slots=True)
class SimulatedJob:
    """What to train, where. `level` is a level or a controller's name; `compute` overrides the task's. `sync_every` is
    the number of local steps, or "auto"; 0 is synchronous training. `wire` may be "auto" too. `plan` is a planner
    whose trees carry every step, or "auto": trees are one of the choices."""

    task: TrainingTask
    network: Network
    level: str = "auto"
    wire: ChosenTransport = "group"
    seed: int = 1
    compute: float | None = None
    note_loss: bool = False
    evaluate_every: int = 10
    warmup: int = 0
    sync_every: int | Literal["auto"] = 0
    outer: OuterConfig = field(default_factory=OuterConfig)
    plan: str = ""


class TrainingSimulation:
    """Iterates over steps without end; the caller stops at a number of steps or of virtual seconds."""

    def __init__(self, job: SimulatedJob, controller: Controller | None = None) -> None:
        self._job = job
        world = len(job.network.ranks)
        self.workers = self._make_workers()
        self.transports = SimulatedTransports(job.wire, job.network, job.seed, job.plan)
        compute = job.task.compute if job.compute is None else job.compute
        self.timeline = Timeline(self.times, compute, random.Random(job.seed))
        self._description = Job(world, self.workers.buckets, self._footprint)
        self._peers = [ClockSync() for _ in range(world - 1)]
        self.controller = controller or (make_controller(job.level) if is_controller(job.level) else None)
        self._fixed = None if self.controller else Fixed(Level.parse(job.level), world, job.warmup)
        if self.transports.along_trees and self.controller is not None:
            self.controller = SummableController(self.controller)
        elif self.transports.along_trees:
            check_summable(Level.parse(job.level))
        # The next step's, and those that were made after the last steps (runtime/adaptive_governor.py).
        self._in_force = self._first()
        self._made: deque[Decision] = deque([self._in_force] * (SAFE + 1), maxlen=SAFE + 1)
        self.timing = DecisionTiming()
        self.view = View.unknown()

    @property
    def times(self) -> NetworkTimes:
        return self.transports.current.times

    @property
    def _footprint(self) -> FootprintOf:
        return self.transports.current.footprint

    def _make_workers(self) -> Workers:
        return Workers(self._job.task, len(self._job.network.ranks), seed=self._job.seed)

    def __iter__(self) -> Iterator[SimulatedStep]:
        while True:
            yield self.step()

    def step(self) -> SimulatedStep:
        number = self.workers.step + 1
        decision = self._fixed.at(number) if self._fixed is not None else self._in_force
        level = decision.level
        self._carry_by(decision)
        trained = self.workers.train(level)
        hops = max(one.hops for one in self._footprint(level, self.workers.buckets))
        timed = self.timeline.step(self.transports.current.traffic(trained.traffic, level), level, hops)
        own = timed.observations[0].facts
        facts = merge([seen.facts for seen in timed.observations], own)
        adaptive = self._job.task.optimizer_spec.name != "sgd"
        rate = self.workers.learning_rate
        facts = replace(facts, level=level, sample=trained.sample, residual=trained.residual)
        facts = replace(facts, adaptive=adaptive, rate=rate)
        if self._job.note_loss:
            facts = replace(facts, loss=trained.loss)
        decision = self._sense_and_decide(timed, facts, self._description) or decision
        held_out = self.workers.held_out_loss() if number % self._job.evaluate_every == 0 else None
        bandwidth = self.view.group.bandwidth
        return SimulatedStep(
            number, timed.end, level, trained.loss, held_out, bandwidth, decision.reason, decision.guarded, facts,
            transport=self.transports.current.kind,
        )  # fmt: skip

    def _sense_and_decide(self, timed: SimulatedStepTimes, facts: StepFacts, job: Job) -> Decision | None:
        """Update the view; the controller's next decision, where there is a controller."""
        self._observe(timed.end)
        self.view = self.transports.sense(timed, self._peers)
        if self.controller is None:
            return None
        step = self.workers.step
        last = self._made[-1]
        decision = self.transports.decide(self.controller, job, facts, self.view, last, step, timed.end)
        self._made.append(replace(decision, delay=self.timing.take([self._late(facts.seconds)])))
        # A decision is made during the step after the one that it is based on.
        self._in_force = self._made[-1 - self._in_force.delay]
        return decision

    def _late(self, seconds: float) -> float:
        """How much later than the end of a step of so many seconds a decision arrives that is made during it."""
        return 2 * self.times.latency + DECIDING - seconds

    def _carry_by(self, decision: Decision) -> None:
        before = self.transports.current
        self.transports.use(decision)
        if self.transports.current is not before:
            self.timeline.times = self.times
            self._description = Job(self.times.world_size, self.workers.buckets, self._footprint)

    def _observe(self, now: float) -> None:
        """Round trips as pulses measure them: with what queues at that moment."""
        for index, peer in enumerate(self._peers):
            trip = self.times.flows[0, index + 1].round_trip * (1 + 0.1 * self.timeline.rng.random())
            peer.take(now - trip, now, now, now)

    def _first(self) -> Decision:
        if not is_controller(self._job.level):
            return Fixed(Level.parse(self._job.level), self.times.world_size, self._job.warmup).at(0)
        whole = Bucket(-1, 0, sum(b.numel for b in self.workers.buckets), 4, (), True)
        return initial_level(self._probe(), lambda level: self._footprint(level, (whole,))[0].wire_bytes)

    def _probe(self) -> float:
        """What the startup probe would find."""
        others = self.times.world_size - 1
        begin = self.times.direct(0.0, 8)
        latency = self.times.direct(begin, 8) - begin
        now = begin + latency
        took, sent = 0.0, 0
        for sent in PROBE_SIZES:
            end = self.times.direct(now, sent // others)
            took, now = end - now, end
            if took > 2 * latency + 0.002:
                break
        self.timeline.now = now
        return sent / max(took - latency, 1e-6)
