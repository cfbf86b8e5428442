"""A governor tells every step once, the last one too, and then what came meanwhile; an adaptive one's ranks agree."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from gradwire.clock import MonotonicClock
from gradwire.decide.base import Job
from gradwire.decide.fixed import Fixed
from gradwire.errors import ConfigError, LinkError
from gradwire.events import Event, Stepped, Transferred
from gradwire.exchange.select import FootprintTable
from gradwire.level import Level
from gradwire.runtime.governor import AdaptiveGovernor, FixedGovernor, Instruments
from gradwire.runtime.pipeline import Pipeline
from gradwire.sense.step_timer import StepTimer
from gradwire.transport.lanes.loopback import Loopback
from gradwire.transport.traffic import Source, Traffic
from gradwire.transport.wires.ledger import Ledger
from gradwire.types import Bucket, Decision, Footprint, StepFacts, View


class Hand:
    """A clock moved by hand, and a sink that keeps everything."""

    def __init__(self) -> None:
        self.time = 10.0
        self.events: list[Event] = []

    def now(self) -> float:
        return self.time

    def emit(self, event: Event) -> None:
        self.events.append(event)


def bucket(step: int) -> Bucket:
    return Bucket(index=0, step=step, numel=1000, itemsize=4, slices=(), is_last=True)


def test_the_last_step_ends_when_its_gradient_is_restored() -> None:
    hand, watch, ledger = Hand(), StepTimer(), Ledger()
    traffic = Traffic(0, hand, hand, [Source(ledger)])
    governor = FixedGovernor(Fixed(Level.parse("int8"), 2, 0), 2, Instruments(watch, hand, hand, traffic))
    for step in range(3):
        governor.decide(bucket(step))
        watch.bucket_ready(hand.time, 4000)
        watch.operation(hand.time + 0.1, hand.time + 0.4, 1000)
        ledger.came(1, 1000, 0.3)
        hand.time += 1.0
    hand.time += 50.0  # an evaluation before the end is nobody's step
    governor.finish()
    governor.finish()
    steps = [event for event in hand.events if isinstance(event, Stepped)]
    assert [(event.step, round(event.seconds, 3)) for event in steps] == [(0, 1.0), (1, 1.0), (2, 0.4)]
    assert all(abs(e.compute + e.encode + e.wire + e.wait - e.seconds) < 1e-9 for e in steps)
    (moved,) = [event for event in hand.events if isinstance(event, Transferred)]
    assert (moved.step, moved.transfers, moved.nbytes) == (2, 3, 3000)


def test_a_step_that_failed_is_not_told() -> None:
    hand, watch = Hand(), StepTimer()
    governor = FixedGovernor(Fixed(Level(), 2, 0), 2, Instruments(watch, hand, hand, Traffic(0, hand, hand)))
    governor.decide(bucket(0))
    watch.bucket_ready(hand.time, 4000)
    watch.drop()
    governor.finish()
    assert not hand.events


class Counting:
    """Another level at every decision; keeps who asked, and fails when told to."""

    def __init__(self, wrong_at: int | None = None) -> None:
        self.threads: list[threading.Thread] = []
        self._wrong_at = wrong_at

    def decide(self, job: Job, view: View, facts: StepFacts, now: float) -> Decision:
        self.threads.append(threading.current_thread())
        count = len(self.threads)
        level = Level(values="fp64" if count == self._wrong_at else ("int8", "int4", "fp16")[count % 3])
        return Decision(level, f"decision {count}", count)


class Trees:
    """Footprints of trees that another plan makes longer."""

    def __init__(self) -> None:
        self.version = 1

    def __call__(self, level: Level, bucket: Bucket) -> Footprint:
        return Footprint(1000 * self.version, 2 * self.version)


class Replanning(Counting):
    """Keeps the bytes and hops that it was told, and sees another plan come into force at its fifth decision."""

    def __init__(self, trees: Trees) -> None:
        super().__init__()
        self.trees, self.told = trees, list[tuple[int, int]]()

    def decide(self, job: Job, view: View, facts: StepFacts, now: float) -> Decision:
        self.told.append((job.wire_bytes(Level()), facts.hops))
        if len(self.told) == 5:
            self.trees.version = 2
        return Decision(Level(values="int8"), "always the same")


def test_after_a_change_of_plan_bytes_and_hops_are_those_of_the_new_trees() -> None:
    trees = Trees()
    controllers: list[Counting] = [Replanning(trees), Counting()]
    play(Loopback(2), controllers, 20, trees)
    assert isinstance(controllers[0], Replanning)
    assert controllers[0].told[0] == (1000, 2)
    assert controllers[0].told[-1] == (2000, 4)


def play(
    world: Loopback, controllers: list[Counting], steps: int, trees: Trees | None = None
) -> list[tuple[list[str], list[Event], str]]:
    """By rank: the levels of its steps, its events, and the error that ended it, if one did."""
    told: list[tuple[list[str], list[Event], str]] = [([], [], "")] * len(controllers)

    def one(rank: int) -> None:
        hand, clock, watch, levels = Hand(), MonotonicClock(), StepTimer(), list[str]()
        instruments = Instruments(watch, clock, hand, Traffic(rank, hand, clock))
        if trees is not None:
            instruments = replace(instruments, plan_version=lambda: trees.version)
        parts = instruments, trees or FootprintTable(len(controllers))
        line = Pipeline([world.lane(rank)], lambda timing: None)
        start = Decision(Level(values="int8"), "start")
        governor = AdaptiveGovernor(rank, controllers[rank], start, line, parts, len(controllers))
        error = ""
        try:
            for step in range(steps):
                levels.append(str(governor.decide(bucket(step)).level))
                watch.bucket_ready(clock.now(), 4000)
                watch.operation(clock.now() - 0.001, clock.now(), 1000)
        except (ConfigError, LinkError) as trouble:
            error = str(trouble)
        finally:
            governor.finish()
            governor.finish()
            governor.close()
        told[rank] = levels, hand.events, error

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(len(controllers))]
    each: Callable[[threading.Thread], None]
    for each in (threading.Thread.start, lambda thread: thread.join(30)):
        for thread in threads:
            each(thread)
    return told


def test_ranks_agree_at_every_step_and_tell_each_once() -> None:
    controllers = [Counting() for _ in range(3)]
    told = play(Loopback(3), controllers, 30)
    assert told[0][0] == told[1][0] == told[2][0]
    assert len(set(told[0][0])) == 3
    for _, events, error in told:
        assert not error
        assert [event.step for event in events if isinstance(event, Stepped)] == list(range(30))


def test_the_controller_is_asked_beside_training_and_on_rank_0_only() -> None:
    controllers = [Counting() for _ in range(2)]
    play(Loopback(2), controllers, 10)
    assert controllers[0].threads
    assert all(thread.name.startswith("gradwire-") for thread in controllers[0].threads)
    assert not controllers[1].threads


def test_a_controllers_mistake_is_an_error_on_its_rank_and_reaches_the_others() -> None:
    told = play(Loopback(2, timeout=3.0), [Counting(wrong_at=4), Counting()], 30)
    assert "fp64" in told[0][2]
    assert "pulse" in told[1][2]


@pytest.mark.parametrize("number", [1, 4])
def test_a_link_that_fails_ends_both_with_an_error(number: int) -> None:
    told = play(Loopback(2, faults={(1, number): LinkError("cut")}), [Counting(), Counting()], 30)
    assert all("cut" in error for _, _, error in told)
    for levels, events, _ in told:
        assert [event.step for event in events if isinstance(event, Stepped)] == list(range(len(levels)))
