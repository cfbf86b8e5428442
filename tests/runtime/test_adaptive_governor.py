"""AdaptiveGovernor: ranks agree on every level, every step is reported once, and failures reach all ranks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import pytest

from gradwire.clock import Clock, MonotonicClock
from gradwire.decide.base import Job
from gradwire.decide.decision_timing import EARLY, SAFE
from gradwire.errors import ConfigError, LinkError
from gradwire.events import Event, Stepped
from gradwire.exchange.select import FootprintTable
from gradwire.level import Level
from gradwire.runtime.ack_source import AckSource
from gradwire.runtime.adaptive_governor import AdaptiveGovernor
from gradwire.runtime.job_ranks import JobRanks
from gradwire.runtime.pipeline import Pipeline
from gradwire.sense.step_timer import StepTimer
from gradwire.transport.lanes.loopback import Loopback
from gradwire.types import Bucket, Decision, Footprint, LinkView, StepFacts, View
from tests.runtime.test_governor import ManualClock, bucket, governor_context
from tests.runtime.transports import transport_of


class CountingController:
    """Another level at every decision; records which thread asked. Its decision `wrong_at` has an invalid level."""

    def __init__(self, wrong_at: int | None = None) -> None:
        self.threads: list[threading.Thread] = []
        self._wrong_at = wrong_at

    def decide(self, job: Job, view: View, facts: StepFacts, now: float) -> Decision:
        self.threads.append(threading.current_thread())
        count = len(self.threads)
        level = Level(values="fp64" if count == self._wrong_at else ("int8", "int4", "fp16")[count % 3])
        return Decision(level, f"decision {count}", count)


class TreeFootprint:
    """Footprints of trees that grow with the plan's version."""

    def __init__(self) -> None:
        self.version = 1

    def __call__(self, level: Level, buckets: Sequence[Bucket]) -> list[Footprint]:
        return [Footprint(1000 * self.version, 2 * self.version) for _ in buckets]


class ReplanningController(CountingController):
    """Keeps the bytes and hops that it is given; at its fifth decision another plan comes into force."""

    def __init__(self, trees: TreeFootprint) -> None:
        super().__init__()
        self.trees, self.footprints = trees, list[tuple[int, int]]()

    def decide(self, job: Job, view: View, facts: StepFacts, now: float) -> Decision:
        self.footprints.append((job.wire_bytes(Level()), facts.hops))
        if len(self.footprints) == 5:
            self.trees.version = 2
        return Decision(Level(values="int8"), "always the same")


def test_after_a_change_of_plan_bytes_and_hops_are_those_of_the_new_trees() -> None:
    trees = TreeFootprint()
    controllers: list[CountingController] = [ReplanningController(trees), CountingController()]
    run(Loopback(2), controllers, 20, trees)
    assert isinstance(controllers[0], ReplanningController)
    assert controllers[0].footprints[0] == (1000, 2)
    assert controllers[0].footprints[-1] == (2000, 4)


class ShiftedClock(MonotonicClock):
    """Ahead of the lanes' clock: whatever arrives has arrived so many seconds before it is needed."""

    def __init__(self, ahead: float) -> None:
        self._ahead = ahead

    def now(self) -> float:
        return super().now() + self._ahead


def run(
    world: Loopback,
    controllers: list[CountingController],
    steps: int,
    trees: TreeFootprint | None = None,
    *,
    decisions: Loopback | None = None,
    clock: Clock | None = None,
    versions: dict[int, list[int]] | None = None,
) -> list[tuple[list[str], list[Event], str]]:
    """By rank: the levels of its steps, its events, and the error that ended it, if one did. `decisions` is the world
    of the second lane; `versions` gets those of the decisions in force."""
    results: list[tuple[list[str], list[Event], str]] = [([], [], "")] * len(controllers)
    clock = clock or MonotonicClock()
    second = decisions or Loopback(len(controllers))

    def one(rank: int) -> None:
        sink, timer, levels, used = ManualClock(), StepTimer(), list[str](), list[int]()
        world_size = len(controllers)
        footprint = trees or FootprintTable(world_size)
        context = governor_context(timer, sink, footprint, clock=clock, rank=rank, world_size=world_size)
        if trees is not None:
            context = replace(context, plan_version=lambda: trees.version)
        pipeline = Pipeline([world.lane(rank), second.lane(rank)], lambda timing: None)
        start = Decision(Level(values="int8"), "start")
        governor = AdaptiveGovernor(context, controllers[rank], start, pipeline, transport_of(pipeline, world_size))
        error = ""
        try:
            for step in range(steps):
                governor.begin_step(bucket(step))
                levels.append(str(governor.decision.level))
                used.append(governor.decision.version)
                timer.bucket_ready(clock.now(), 4000)
                timer.operation(clock.now() - 0.001, clock.now(), 1000)
        except (ConfigError, LinkError) as failure:
            error = str(failure)
        finally:
            governor.finish()
            governor.finish()
            governor.close()
        results[rank] = levels, sink.events, error
        if versions is not None:
            versions[rank] = used

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(len(controllers))]
    each: Callable[[threading.Thread], None]
    for each in (threading.Thread.start, lambda thread: thread.join(30)):
        for thread in threads:
            each(thread)
    return results


def test_ranks_agree_at_every_step_and_report_each_once() -> None:
    controllers = [CountingController() for _ in range(3)]
    results = run(Loopback(3), controllers, 30)
    assert results[0][0] == results[1][0] == results[2][0]
    assert len(set(results[0][0])) == 3
    for _, events, error in results:
        assert not error
        assert [event.step for event in events if isinstance(event, Stepped)] == list(range(30))


class ViewController(CountingController):
    """Keeps the least bandwidth that it was shown, and the replicas of the job."""

    def __init__(self) -> None:
        super().__init__()
        self.floors, self.replicas, self.links = list[float](), set[int](), set[tuple[int, int]]()

    def decide(self, job: Job, view: View, facts: StepFacts, now: float) -> Decision:
        self.floors.append(view.group.floor)
        self.replicas.add(job.world_size)
        self.links |= view.links.keys()
        return super().decide(job, view, facts, now)


def test_shards_that_share_an_uplink_are_decided_for_by_one_controller_which_sees_their_share() -> None:
    """Two sites of two shards, site 0 with ranks 0 and 1. The uplinks carry 2 MB/s; both shards send at once."""
    controllers = [ViewController() for _ in range(4)]
    world, second = Loopback(4), Loopback(4)
    levels: list[list[str]] = [[] for _ in controllers]

    def one(rank: int) -> None:
        sink, timer, clock = ManualClock(), StepTimer(), MonotonicClock()
        context = governor_context(timer, sink, FootprintTable(2), clock=clock, rank=rank // 2, world_size=2)
        job = JobRanks.of_shards(10 + rank, (10, 11, 12, 13), (10 + rank % 2, 12 + rank % 2))
        context = replace(context, job_ranks=job)
        pipeline = Pipeline([world.lane(rank), second.lane(rank)], lambda timing: None)
        start = Decision(Level(values="int8"), "start")
        acks = AckSource(lambda: {1 - rank // 2: LinkView(rtprop=0.001, confidence=1.0)})
        governor = AdaptiveGovernor(context, controllers[rank], start, pipeline, transport_of(pipeline, 2), acks)
        for step in range(20):
            governor.begin_step(bucket(step))
            levels[rank].append(str(governor.decision.level))
            timer.bucket_ready(clock.now(), 4000)
            timer.operation(clock.now() - 0.002, clock.now(), 2000)  # 2 x 2000 bytes in 2 ms
        assert governor._trips().keys() == {(rank + 2) % 4}, "links are those to the ranks of the exchange"
        governor.finish()
        governor.close()

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert levels == [levels[0]] * 4
    assert len(levels[0]) == 20
    assert len(set(levels[0])) == 3
    assert [bool(own.floors) for own in controllers] == [True, False, False, False]
    assert controllers[0].replicas == {2}
    assert controllers[0].links == {(0, 2)}
    assert controllers[0].floors[-1] == pytest.approx(1e6, rel=0.05)


def test_the_controller_is_asked_on_the_pulse_thread_and_on_rank_0_only() -> None:
    controllers = [CountingController() for _ in range(2)]
    run(Loopback(2), controllers, 10)
    assert controllers[0].threads
    assert all(thread.name.startswith("gradwire-") for thread in controllers[0].threads)
    assert not controllers[1].threads


@pytest.mark.parametrize(("ahead", "delay"), [(1000.0, EARLY), (-1000.0, SAFE)])
def test_a_decision_is_in_force_at_the_next_step_where_it_arrives_in_time(ahead: float, delay: int) -> None:
    """Decision k is made during step k: by the facts of the step before it."""
    versions: dict[int, list[int]] = {}
    controllers = [CountingController() for _ in range(3)]
    run(Loopback(3), controllers, 30, clock=ShiftedClock(ahead), versions=versions)
    assert versions[0] == versions[1] == versions[2]
    assert [step - version for step, version in enumerate(versions[0])][20:] == [delay] * 10
    assert versions[0][:4] == [0, 0, 0, 1], "until the ranks have reported that decisions are early"


class ScriptedTiming:
    """Another delay at every decision."""

    DELAYS = (2, 1, 1, 2, 2, 1, 2, 1, 1, 1, 2)

    def __init__(self) -> None:
        self._taken = 0

    def take(self, late: Iterable[float]) -> int:
        delay = self.DELAYS[self._taken % len(self.DELAYS)]
        self._taken += 1
        return delay


def test_ranks_agree_when_the_delay_of_decisions_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradwire.runtime.adaptive_governor.DecisionTiming", ScriptedTiming)
    versions: dict[int, list[int]] = {}
    run(Loopback(3), [CountingController() for _ in range(3)], 40, versions=versions)
    script = ScriptedTiming()
    delays = [script.take(()) for _ in range(40)]
    expected, delay = [0], SAFE
    for step in range(1, 40):
        made = step - delay
        expected.append(expected[-1] if made < 0 else made)
        delay = delays[made] if made >= 0 else delay
    assert versions[0] == versions[1] == versions[2] == expected


@pytest.mark.slow
def test_an_invalid_level_of_a_controller_is_an_error_on_its_rank_and_reaches_the_others() -> None:
    results = run(Loopback(2, timeout=3.0), [CountingController(wrong_at=4), CountingController()], 30)
    assert "fp64" in results[0][2]
    assert "pulse" in results[1][2]


@pytest.mark.parametrize("number", [1, 4])
def test_a_link_that_fails_ends_both_with_an_error(number: int) -> None:
    results = run(Loopback(2, faults={(1, number): LinkError("cut")}), [CountingController(), CountingController()], 30)
    assert all("cut" in error for _, _, error in results)
    for levels, events, _ in results:
        assert [event.step for event in events if isinstance(event, Stepped)] == list(range(len(levels)))


@pytest.mark.parametrize("number", [0, 4])
def test_a_decision_that_cannot_be_sent_ends_both_with_an_error(number: int) -> None:
    cut = Loopback(2, faults={(0, number): LinkError("cut")})
    results = run(Loopback(2, timeout=3.0), [CountingController(), CountingController()], 30, decisions=cut)
    assert all("pulse: cut" in error for _, _, error in results)
    for levels, events, _ in results:
        assert [event.step for event in events if isinstance(event, Stepped)] == list(range(len(levels)))
