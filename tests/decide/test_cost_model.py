"""Cost model: its predictions, and that it computes each footprint once and not at every step."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from gradwire.decide.auto import Auto
from gradwire.decide.base import Controller, Job, same_job
from gradwire.decide.cost_model import predict
from gradwire.decide.ladder import LADDER
from gradwire.decide.summable_controller import SummableController
from gradwire.exchange.select import FootprintTable
from gradwire.level import Level
from gradwire.types import Bucket, Footprint, LinkView, StepFacts, View
from tests.decide.test_controllers import buckets

MANY = 400


class Counted:
    """Footprints, and how often each was requested."""

    def __init__(self, world_size: int) -> None:
        self._footprints = FootprintTable(world_size)
        self.calls = 0

    def __call__(self, level: Level, buckets: Sequence[Bucket]) -> Sequence[Footprint]:
        self.calls += 1
        return self._footprints(level, buckets)


def facts_of(level: Level, rng: random.Random) -> StepFacts:
    times = tuple((0.001 * index, 16_000) for index in range(MANY))
    return StepFacts(1.0, rng.uniform(0.2, 0.3), 0.3, 4_000_000, 2, 0.01, 0.4, times, level=level)


@pytest.mark.parametrize("make", [Auto, lambda: SummableController(Auto())])
def test_a_decision_requests_each_footprint_once_and_not_at_every_step(make: type[Controller]) -> None:
    counted, rng, controller = Counted(8), random.Random(1), make()
    job, view = Job(8, buckets(MANY, 4000), counted), View(LinkView(0.01, 12.5e6, 12.5e6, confidence=1.0))
    level = Level(values="int8")
    for step in range(30):
        again = Job(8, tuple(replace(bucket, step=step) for bucket in job.buckets), counted)
        job = same_job(job, again)
        level = controller.decide(job, view, facts_of(level, rng), 1.0 * step).level
    assert counted.calls <= len(LADDER)


def test_other_buckets_are_another_job() -> None:
    counted = Counted(8)
    job = Job(8, buckets(4, 4000), counted)
    assert same_job(job, Job(8, buckets(4, 4000), counted)) is job
    assert same_job(job, Job(8, buckets(4, 8000), counted)) is not job
    assert same_job(job, Job(8, buckets(5, 4000), counted)) is not job


def test_another_plan_is_another_job() -> None:
    counted = Counted(8)
    job = Job(8, buckets(4, 4000), counted, 1)
    assert same_job(job, Job(8, buckets(4, 4000), counted, 1)) is job
    assert same_job(job, Job(8, buckets(4, 4000), counted, 2)) is not job


def test_low_rank_footprints_depend_on_the_shapes_and_not_only_on_the_size() -> None:
    footprints, level = FootprintTable(8), Level.parse("lowrank:4")
    (wide,) = buckets(1, 640_000)
    (part,) = wide.slices
    flat, square = (replace(wide, slices=(replace(part, shape=shape),)) for shape in ((640_000,), (800, 800)))
    assert footprints(level, (flat,)) != footprints(level, (square,))


def one_by_one(job: Job, level: Level, view: View, facts: StepFacts, work: float) -> float:
    """The recurrence of the module's docstring, bucket by bucket."""
    encoded = sent = restored = ready = 0.0
    for index, (bucket, size) in enumerate(zip(job.buckets, job.footprint(level, job.buckets), strict=True)):
        ready = facts.buckets[min(index, len(facts.buckets) - 1)][0] if facts.buckets else 0.0
        encoded = max(encoded, ready) + work * bucket.numel / 2
        sent = max(sent, encoded) + size.wire_bytes / (view.group.bandwidth or 1e12)
        latency = max(size.hops * (view.group.rtprop or 0.0) / 2, view.group.overhead)
        restored = sent + latency + work * bucket.numel / 2
    return max(0.0, restored - ready)


@pytest.mark.parametrize("measured", [0, 3, 10, 12])
def test_the_prediction_is_that_of_its_recurrence(measured: int) -> None:
    rng = random.Random(measured)
    for _ in range(20):
        job = Job(4, buckets(10, 4000 * rng.randint(1, 300)), FootprintTable(4))
        ready = sorted(rng.uniform(0, 0.2) for _ in range(measured))
        facts = StepFacts(1.0, 0.3, 0.3, 1, 2, 0.01, 0.2, tuple((at, 1000) for at in ready))
        view = View(LinkView(rng.uniform(0, 0.1), rng.uniform(1e6, 1e9), overhead=rng.uniform(0, 0.05)))
        for rung in LADDER:
            scale = rng.uniform(0.5, 5)
            exposed = predict(rung, job, view, facts, Level(), scale).exposed
            assert exposed == pytest.approx(one_by_one(job, rung.level, view, facts, rung.work * 1e-9 * scale))


def test_what_training_does_before_it_needs_the_result_is_not_waited_for() -> None:
    job, view = Job(4, buckets(2, 400_000), FootprintTable(4)), View(LinkView(0.01, 1e6))
    facts = StepFacts(1.0, buckets=((0.0, 1), (0.1, 1)))
    whole = predict(LADDER[0], job, view, facts, Level(), 1.0).exposed
    assert predict(LADDER[0], job, view, replace(facts, slack=0.3), Level(), 1.0).exposed == pytest.approx(whole - 0.3)
    assert predict(LADDER[0], job, view, replace(facts, slack=2 * whole), Level(), 1.0).exposed == 0.0


def test_a_job_without_buckets_waits_for_nothing() -> None:
    view = View(LinkView(0.01, 1e6, overhead=0.5))
    assert predict(LADDER[0], Job(4, (), FootprintTable(4)), view, StepFacts(), Level(), 1.0).exposed == 0.0
