"""A governor tells every step once, the last one too, and then what came meanwhile."""

from __future__ import annotations

from gradwire.decide.fixed import Fixed
from gradwire.events import Event, Stepped, Transferred
from gradwire.flow import Bucket
from gradwire.govern import Instruments, Steady
from gradwire.level import Level
from gradwire.sense.stopwatch import Stopwatch
from gradwire.traffic import Source, Traffic
from gradwire.transport.ledger import Ledger


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
    hand, watch, ledger = Hand(), Stopwatch(), Ledger()
    traffic = Traffic(0, hand, hand, [Source(ledger)])
    governor = Steady(Fixed(Level.parse("int8"), 2, 0), 2, Instruments(watch, hand, hand, traffic))
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
    hand, watch = Hand(), Stopwatch()
    governor = Steady(Fixed(Level(), 2, 0), 2, Instruments(watch, hand, hand, Traffic(0, hand, hand)))
    governor.decide(bucket(0))
    watch.bucket_ready(hand.time, 4000)
    watch.drop()
    governor.finish()
    assert not hand.events
