"""Startup probe: every rank gets the slowest rank's rate; more is sent only while latency hides the bytes."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace

import pytest

from gradwire.errors import LinkError
from gradwire.runtime.pipeline import Pipeline
from gradwire.runtime.startup_probe import SIZES, probe_bandwidth, probe_shared_uplink
from gradwire.transport.lanes.base import Op, Pending, Timing
from gradwire.transport.lanes.loopback import Loopback, LoopbackLane


@dataclass
class TimedLane:
    """A lane whose timings say that an operation takes a latency, and its bytes at a rate."""

    lane: LoopbackLane
    latency: float
    rate: float
    sent: list[int] = field(default_factory=list)

    def start(self, op: Op) -> Pending:
        pending, lane = self.lane.start(op), self

        class Later:
            def wait(self) -> Timing:
                timing = pending.wait()
                lane.sent.append(timing.nbytes)
                return replace(timing, finished=timing.started + lane.latency + timing.nbytes / lane.rate)

        return Later()

    def close(self) -> None:
        self.lane.close()


def probe(lanes: list[TimedLane]) -> list[float | BaseException]:
    found: list[float | BaseException] = [0.0] * len(lanes)

    def one(rank: int) -> None:
        pipeline = Pipeline([lanes[rank]], lambda timing: None)
        try:
            found[rank] = probe_bandwidth(pipeline, len(lanes))
        except BaseException as error:
            found[rank] = error
        finally:
            pipeline.close()

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(len(lanes))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return found


@pytest.mark.parametrize(("latency", "rate"), [(0.0002, 1.25e6), (0.04, 1.25e6), (0.1, 12.5e6), (0.001, 125e6)])
def test_all_ranks_find_the_slowest_ranks_rate(latency: float, rate: float) -> None:
    world = Loopback(3)
    lanes = [TimedLane(world.lane(rank), latency, rate / 2 if rank == 2 else rate) for rank in range(3)]
    found = probe(lanes)
    assert found[0] == found[1] == found[2] == pytest.approx(rate / 2, rel=0.02)


def test_ranks_that_share_an_uplink_begin_together_and_all_take_the_least_rate() -> None:
    """Two sites of two shards: ranks 0 and 2 hold the first, 1 and 3 the second, which gets less of the uplink. The
    first is ready earlier, and would see all of the uplink."""
    everyone, groups = Loopback(4), [Loopback(2), Loopback(2)]
    found = [0.0] * 4

    def one(rank: int) -> None:
        lane = TimedLane(groups[rank % 2].lane(rank // 2), 0.001, 4e6 if rank % 2 else 8e6)
        own, together = (Pipeline([each], lambda timing: None) for each in (lane, everyone.lane(rank)))
        ready.wait(30)
        if rank % 2:
            early.wait(30)
        found[rank] = probe_shared_uplink(own, 2, together, 4)
        own.close()
        together.close()

    ready, early = threading.Barrier(5), threading.Event()
    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(4)]
    for thread in threads:
        thread.start()
    ready.wait(30)
    threads[0].join(0.2)  # ranks 0 and 2 would be done by now
    assert found[0] == 0.0, "it did not wait for the other group"
    early.set()
    for thread in threads:
        thread.join(30)
    assert found == pytest.approx([4e6] * 4, rel=0.02)
    assert len(set(found)) == 1


def test_a_slow_network_is_not_sent_the_largest_part() -> None:
    world = Loopback(2)
    lanes = [TimedLane(world.lane(rank), 0.001, 1e6) for rank in range(2)]
    probe(lanes)
    assert sum(lanes[0].sent) < SIZES[-1]


def test_a_rank_that_dies_during_the_probe_is_a_link_error_on_every_rank() -> None:
    world = Loopback(3, faults={(1, 3): LinkError("cut")})
    found = probe([TimedLane(world.lane(rank), 0.001, 1e9) for rank in range(3)])
    assert all(isinstance(error, LinkError) and "startup probe" in str(error) for error in found)
