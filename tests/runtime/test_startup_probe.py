"""The first look: every rank gets the slowest rank's rate; more is sent only while latency hides the bytes."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace

import pytest

from gradwire.errors import LinkError
from gradwire.runtime.pipeline import Pipeline
from gradwire.runtime.startup_probe import SIZES, first_look
from gradwire.transport.lanes.base import Op, Pending, Timing
from gradwire.transport.lanes.loopback import Loopback, LoopbackLane


@dataclass
class Timed:
    """A lane whose operations take, by the clock of their timings, a latency and their bytes at a rate."""

    lane: LoopbackLane
    latency: float
    rate: float
    sent: list[int] = field(default_factory=list)

    def start(self, op: Op) -> Pending:
        pending, told = self.lane.start(op), self

        class Later:
            def wait(self) -> Timing:
                timing = pending.wait()
                told.sent.append(timing.nbytes)
                return replace(timing, finished=timing.started + told.latency + timing.nbytes / told.rate)

        return Later()

    def close(self) -> None:
        self.lane.close()


def look(lanes: list[Timed]) -> list[float | BaseException]:
    found: list[float | BaseException] = [0.0] * len(lanes)

    def one(rank: int) -> None:
        line = Pipeline([lanes[rank]], lambda timing: None)
        try:
            found[rank] = first_look(line, len(lanes))
        except BaseException as error:
            found[rank] = error
        finally:
            line.close()

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(len(lanes))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return found


@pytest.mark.parametrize(("latency", "rate"), [(0.0002, 1.25e6), (0.04, 1.25e6), (0.1, 12.5e6), (0.001, 125e6)])
def test_all_ranks_find_the_slowest_ranks_rate(latency: float, rate: float) -> None:
    world = Loopback(3)
    lanes = [Timed(world.lane(rank), latency, rate / 2 if rank == 2 else rate) for rank in range(3)]
    found = look(lanes)
    assert found[0] == found[1] == found[2] == pytest.approx(rate / 2, rel=0.02)


def test_a_slow_network_is_not_sent_the_largest_part() -> None:
    world = Loopback(2)
    lanes = [Timed(world.lane(rank), 0.001, 1e6) for rank in range(2)]
    look(lanes)
    assert sum(lanes[0].sent) < SIZES[-1]


def test_a_rank_that_dies_meanwhile_is_one_clear_error_on_every_other() -> None:
    world = Loopback(3, faults={(1, 3): LinkError("cut")})
    found = look([Timed(world.lane(rank), 0.001, 1e9) for rank in range(3)])
    assert all(isinstance(error, LinkError) and "first look" in str(error) for error in found)
