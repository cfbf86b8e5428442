"""Governor: a fixed level changes only when a step begins; every step is reported once, the last one too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gradwire.clock import Clock
from gradwire.decide.fixed import Fixed
from gradwire.events import Event, Stepped, Transferred
from gradwire.exchange.select import FootprintTable
from gradwire.level import Level
from gradwire.runtime.governor import FixedGovernor, FootprintOf, GovernorContext
from gradwire.sense.step_timer import StepTimer
from gradwire.transport.traffic import Source, Traffic
from gradwire.transport.wires.ledger import Ledger
from gradwire.types import Bucket


class ManualClock:
    """A clock that the test moves, and a sink that keeps every event."""

    def __init__(self) -> None:
        self.time = 10.0
        self.events: list[Event] = []

    def now(self) -> float:
        return self.time

    def emit(self, event: Event) -> None:
        self.events.append(event)


def bucket(step: int) -> Bucket:
    return Bucket(index=0, step=step, numel=1000, itemsize=4, slices=(), is_last=True)


def governor_context(
    timer: StepTimer,
    sink: ManualClock,
    footprint: FootprintOf,
    *,
    clock: Clock | None = None,
    rank: int = 0,
    world_size: int = 2,
    sources: Sequence[Source] = (),
) -> GovernorContext:
    clock = clock or sink
    traffic = Traffic(rank, sink, clock, sources)
    return GovernorContext(
        rank=rank, world_size=world_size, timer=timer, clock=clock, sink=sink, traffic=traffic, footprint=footprint
    )


def test_the_last_step_ends_when_its_gradient_is_restored() -> None:
    clock, timer, ledger = ManualClock(), StepTimer(), Ledger()
    context = governor_context(timer, clock, FootprintTable(2), sources=[Source(ledger)])
    governor = FixedGovernor(Fixed(Level.parse("int8"), 2, 0), context)
    for step in range(3):
        governor.begin_step(bucket(step))
        timer.bucket_ready(clock.time, 4000)
        timer.operation(clock.time + 0.1, clock.time + 0.4, 1000)
        ledger.add_received(1, 1000, 0.3)
        clock.time += 1.0
    clock.time += 50.0  # an evaluation before the end belongs to no step
    governor.finish()
    governor.finish()
    steps = [event for event in clock.events if isinstance(event, Stepped)]
    assert [(event.step, round(event.seconds, 3)) for event in steps] == [(0, 1.0), (1, 1.0), (2, 0.4)]
    assert all(abs(e.compute + e.encode + e.wire + e.wait - e.seconds) < 1e-9 for e in steps)
    (moved,) = [event for event in clock.events if isinstance(event, Transferred)]
    assert (moved.step, moved.transfers, moved.nbytes) == (2, 3, 3000)


def test_a_step_that_failed_is_not_reported() -> None:
    clock, timer = ManualClock(), StepTimer()
    governor = FixedGovernor(Fixed(Level(), 2, 0), governor_context(timer, clock, FootprintTable(2)))
    governor.begin_step(bucket(0))
    timer.bucket_ready(clock.time, 4000)
    timer.drop()
    governor.finish()
    assert not clock.events


def test_a_fixed_level_changes_only_when_a_step_begins() -> None:
    context = governor_context(StepTimer(), ManualClock(), FootprintTable(2))
    governor = FixedGovernor(Fixed(Level.parse("topk:0.01"), 2, 4), context)
    levels = []
    for step in range(6):
        governor.begin_step(bucket(step))
        levels.append(governor.decision.level)
        governor.add_bucket(replace(bucket(step), index=1))
        assert governor.decision.level == levels[-1]
    assert levels == [Fixed(Level.parse("topk:0.01"), 2, 4).at(step).level for step in range(6)]
    assert len(set(levels)) > 1
