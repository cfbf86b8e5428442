"""From a fall of the network to a lossier level, in virtual time: as many steps as the timing of decisions takes."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest

from gradwire.decide.base import Job
from gradwire.decide.decision_timing import EARLY, IN_TIME, SAFE
from gradwire.level import Level
from gradwire.network import Change, LinkSpec, Network
from gradwire.network.network import SWITCH, as_hosts, host_names, star
from gradwire.simulate.tasks import make_task
from gradwire.simulate.training import SimulatedJob, SimulatedStep, TrainingSimulation
from gradwire.types import Decision, StepFacts, View
from gradwire.units import Rate, Seconds

FELL = 3.0
DENSE, LOSSIER = Level(), Level.parse("int2")


class QuickController:
    """Changes the level as soon as a step takes twice as long as the shortest before at that level."""

    def __init__(self) -> None:
        self._shortest = float("inf")
        self._level = DENSE

    def decide(self, job: Job, view: View, facts: StepFacts, now: float) -> Decision:
        if facts.level == DENSE:
            self._shortest = min(self._shortest, facts.seconds)
            if facts.seconds > 2 * self._shortest:
                self._level = LOSSIER
        return Decision(self._level, "as the last step was")


def falling(one_way: float) -> Network:
    """100 Mbit/s that fall to 10; from host to host it takes so many seconds."""
    hosts = as_hosts(host_names(2))
    links = star(hosts, LinkSpec(Rate.from_mbit(100), Seconds(one_way / 2)))
    return Network("falling", hosts, links, (SWITCH,), changes=(Change(Seconds(FELL), "*", Rate.from_mbit(10)),))


def train(one_way: float, compute: float, steps: int) -> list[SimulatedStep]:
    task = replace(make_task("mlp"), compute=compute)
    job = SimulatedJob(task, falling(one_way), "auto", evaluate_every=steps + 1)
    return list(islice(TrainingSimulation(job, QuickController()), steps))


def steps_until_answered(ran: list[SimulatedStep]) -> int:
    """From the step in which the network falls to the first one at the lossier level."""
    fell = next(one.step for one in ran if one.seconds > FELL)
    assert fell > 2 * IN_TIME, "decisions were measured before"
    return next(one.step for one in ran if one.level == LOSSIER) - fell


def test_a_fall_is_answered_two_steps_later() -> None:
    assert steps_until_answered(train(one_way=0.005, compute=0.05, steps=45)) == 1 + EARLY == 2


def test_where_a_decision_would_arrive_after_the_next_step_has_begun_three_steps_later() -> None:
    """A step without compute is shorter than two operations of the process group: pulses and a decision."""
    ran = train(one_way=0.05, compute=0.001, steps=35)
    before = [one.facts.seconds for one in ran if one.seconds < FELL][5:]
    assert max(before) < 2 * 0.1
    assert steps_until_answered(ran) == 1 + SAFE == 3


@pytest.mark.parametrize(("one_way", "compute"), [(0.005, 0.05), (0.05, 0.001)])
def test_waiting_for_decisions_lengthens_no_step(one_way: float, compute: float) -> None:
    """A decision that is in force at a step had arrived before it."""
    job = SimulatedJob(replace(make_task("mlp"), compute=compute), falling(one_way), "auto", evaluate_every=100)
    simulation = TrainingSimulation(job, QuickController())
    for _ in range(30):
        facts = simulation.step().facts
        early = simulation._in_force.delay == EARLY
        assert not early or 2 * simulation.times.latency < facts.seconds
