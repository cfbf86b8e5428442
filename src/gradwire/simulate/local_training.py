"""Local training in virtual time: `sync_every` local steps, then an exchange of the weights, on a simulated network.

    1. every worker takes a step alone (simulate/local_workers.py); the clock runs for each worker on its own
    2. after the last step of a round the weights are exchanged for real, at the level in force; the timeline says how
       long that takes
    3. estimator and controller see a round as one step of the session, as in a real job

With `sync_every="auto"` the controller also decides how many steps a round has. A decision for 1 ends the round and
returns to synchronous steps; one for more begins local steps after the synchronous step that it is in force at.

The loss of a step is the mean over the workers' own weights; the held-out loss is that of the global weights.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from gradwire.decide.auto import EXTRA_STEPS
from gradwire.decide.base import Controller, Job
from gradwire.decide.fixed import FixedLevel
from gradwire.decide.period_controller import PeriodController, local_levels
from gradwire.decide.registry import is_controller, make_controller
from gradwire.errors import ConfigError
from gradwire.level import Level
from gradwire.runtime.governor import merge
from gradwire.simulate.local_workers import LocalWorkers
from gradwire.simulate.training import SimulatedJob, SimulatedStep, TrainingSimulation
from gradwire.types import Decision, StepFacts

AUTO: Final = "auto"


def simulation_of(job: SimulatedJob, controller: Controller | None = None) -> TrainingSimulation:
    """The simulation of a job, with local steps where it has them."""
    if not job.sync_every:
        return TrainingSimulation(job, controller)
    return LocalTrainingSimulation(job, controller)


class LocalTrainingSimulation(TrainingSimulation):
    """Iterates over the optimizer's steps, local or synchronous."""

    workers: LocalWorkers

    def __init__(self, job: SimulatedJob, controller: Controller | None = None) -> None:
        if job.sync_every != AUTO and job.sync_every < 1:
            raise ConfigError(f"sync_every: {job.sync_every} is not valid; it must be a whole number >= 1, or auto")
        super().__init__(job, controller or _period_controller(job))
        self._round_length, self._round_facts = 0, StepFacts()
        if job.sync_every != AUTO:
            self._begin_local(job.sync_every)

    def _make_workers(self) -> LocalWorkers:
        job = self._job
        return LocalWorkers(job.task, len(job.network.ranks), seed=job.seed, outer=job.outer)

    def step(self) -> SimulatedStep:
        if self.workers.local:
            return self._step_alone()
        decision = self._decision
        stepped = super().step()
        if decision.sync_every > 1:
            self._begin_local(decision.sync_every)
        return stepped

    @property
    def _decision(self) -> Decision:
        """That of the session's present step: of a round, with local steps."""
        return self._fixed.at(self.workers.rounds) if self._fixed is not None else self._in_force

    @property
    def _adaptive(self) -> bool:
        """The cautious assumption, where a controller of levels sees rounds only (integrations/local_attach.py)."""
        return self._job.sync_every != AUTO or self._job.task.optimizer_spec.name != "sgd"

    def _begin_local(self, sync_every: int) -> None:
        self.workers.begin_local()
        self._round_length = sync_every
        self._round_job = Job(self.workers.world_size, self.workers.weight_buckets, self._footprint)

    def _step_alone(self) -> SimulatedStep:
        loss, seconds, decision = self.workers.train_alone(), self.timeline.step_alone(), self._decision
        guarded, every = False, self._round_length
        if self.workers.steps_alone >= every:
            decision, seconds = self._end_round(decision)
            guarded = decision.guarded
        number = self.workers.step
        held_out = self.workers.held_out_loss() if number % self._job.evaluate_every == 0 else None
        return SimulatedStep(
            number, seconds, self._round_facts.level or decision.level, loss, held_out, self.view.group.bandwidth,
            decision.reason, guarded, self._round_facts, every, self.transports.current.kind,
        )  # fmt: skip

    def _end_round(self, decision: Decision) -> tuple[Decision, float]:
        """The next decision, and when the round ended."""
        steps, ends = self.workers.steps_alone, self._job.sync_every == AUTO and decision.sync_every == 1
        level = Level() if ends else decision.level
        self._carry_by(decision)
        ended = self.workers.end_local() if ends else self.workers.end_round(level)
        hops = max(one.hops for one in self._footprint(level, self._round_job.buckets))
        timed = self.timeline.end_round(ended.traffic, level, hops)
        facts = merge([seen.facts for seen in timed.observations], timed.observations[0].facts)
        self._round_facts = replace(
            facts, level=level, sample=ended.sample, adaptive=self._adaptive, steps=steps, divergence=ended.divergence
        )
        self._round_length = decision.sync_every if self._job.sync_every == AUTO else steps
        return self._sense_and_decide(timed, self._round_facts, self._round_job) or decision, timed.end


def _period_controller(job: SimulatedJob) -> Controller | None:
    """Decides level and local steps, where the job leaves both open, or the local steps of a fixed level."""
    if job.sync_every != AUTO:
        return None
    if is_controller(job.level):
        return PeriodController(make_controller(job.level), local_levels(None, EXTRA_STEPS), EXTRA_STEPS)
    level = Level.parse(job.level)
    return PeriodController(FixedLevel(level), (level,))
