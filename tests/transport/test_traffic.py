"""Traffic reports what ledgers and wires hold, about once a second and at the end, by the job's ranks."""

from __future__ import annotations

import time

import pytest

from gradwire.events import Event, LinksSensed, Transferred
from gradwire.transport import traffic as module
from gradwire.transport.traffic import Source, Traffic
from gradwire.transport.wires.ledger import Ledger


class ManualClock:
    """A clock set by the test, and a sink that keeps every event."""

    def __init__(self) -> None:
        self.time = 100.0
        self.events: list[Event] = []

    def now(self) -> float:
        return self.time

    def emit(self, event: Event) -> None:
        self.events.append(event)

    def taken(self) -> list[Event]:
        events, self.events = self.events, []
        return events


def stats(sent: float = 1e6, retransmitted: float = 0.0, rate: float = 5e6) -> dict[str, float]:
    known = {"srtt": 0.03, "rtprop": 0.02, "bottleneck": rate, "loss": 0.01, "window": 64_000.0}
    return {**known, "bytes_sent": sent, "retransmitted_bytes": retransmitted}


def wait_for_one(clock: ManualClock) -> None:
    """The reporting thread may have to wait long for a processor on a busy machine."""
    deadline = time.monotonic() + 20
    while not clock.events and time.monotonic() < deadline:
        time.sleep(0.002)


def test_sums_are_reported_while_it_runs_and_completely_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVERY", 0.01)
    clock, ledger = ManualClock(), Ledger()
    traffic = Traffic(0, clock, clock, [Source(ledger)])
    traffic.start()
    for step in range(20):
        ledger.add_received(1, 1000, 0.01)
        traffic.step_ended(step)
        time.sleep(0.005)
    wait_for_one(clock)
    between = len(clock.events)
    traffic.finish(20)
    reported = [event for event in clock.taken() if isinstance(event, Transferred)]
    assert between >= 1
    assert [event.step for event in reported] == sorted({event.step for event in reported})
    assert sum(event.transfers for event in reported) == 20
    assert sum(event.nbytes for event in reported) == 20_000


def test_where_no_step_ends_nothing_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVERY", 0.005)
    clock = ManualClock()
    traffic = Traffic(0, clock, clock, [Source(Ledger(), lambda: {1: stats()})])
    traffic.start()
    time.sleep(0.03)
    assert not clock.events
    traffic.step_ended(0)
    wait_for_one(clock)
    time.sleep(0.05)  # no second one comes
    assert len([event for event in clock.events if isinstance(event, LinksSensed)]) == 1
    traffic.finish(0)


def test_retransmitted_bytes_are_reported_as_a_difference() -> None:
    clock, ledger, counted = ManualClock(), Ledger(), [500.0, 500.0, 1700.0]
    traffic = Traffic(0, clock, clock, [Source(ledger, lambda: {1: stats(retransmitted=counted.pop(0))})])
    seen = []
    for _ in range(3):
        traffic.report()
        seen.append([event.retransmitted for event in clock.taken() if isinstance(event, Transferred)])
    assert seen == [[500], [], [1200]]


def test_the_last_estimates_of_a_link_outlive_its_peer() -> None:
    clock, seen = ManualClock(), [{1: stats(rate=5e6)}, {}]
    traffic = Traffic(0, clock, clock, [Source(Ledger(), lambda: seen.pop(0))])
    traffic.report()
    clock.time += 2.0
    traffic.finish(1, lambda: {1: (0.5, 0.4)})
    *_, last = clock.taken()
    assert isinstance(last, LinksSensed)
    assert (last.links[0].rate, last.links[0].age) == (5e6, 2.0)


def test_two_wires_to_a_peer_are_one_link_and_members_are_reported_by_job_rank() -> None:
    clock, pulses, across = ManualClock(), Ledger(), Ledger()
    pulses.add_received(4, 256, 0.001)
    across.add_received(1, 1_000_000, 0.5, missing=100, reason="threshold")
    across.add_undelivered(1, 40)
    sources = [
        Source(pulses, lambda: {4: stats(sent=1e3, rate=1.0)}),
        Source(across, lambda: {1: stats(sent=1e9, rate=7e6)}, ranks=(0, 4)),
    ]
    Traffic(0, clock, clock, sources).finish(5, lambda: {4: (0.5, 0.4), 2: (0.2, 0.1), 3: (None, None)})
    moved, links = clock.taken()
    assert isinstance(moved, Transferred)
    assert (moved.peer, moved.transfers, moved.missing, moved.returned) == (4, 2, 100, 40)
    assert moved.closes == {"complete": 1, "threshold": 1}
    assert isinstance(links, LinksSensed)
    by_trip, by_wire = links.links
    assert (by_trip.destination, by_trip.rate, by_trip.rtt, by_trip.rtprop) == (2, None, 0.2, 0.1)
    assert (by_wire.destination, by_wire.rate, by_wire.rtt, by_wire.window) == (4, 7e6, 0.03, 64_000)
