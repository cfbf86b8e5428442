"""OperationMeter: timings reach the step timer; the ledger counts what the process group carries, by peer if known."""

from __future__ import annotations

import pytest

from gradwire.runtime.operation_meter import OperationMeter
from gradwire.sense.step_timer import StepTimer
from gradwire.transport.lanes.base import Timing
from gradwire.transport.wires.ledger import ALL_PEERS


def metered(own_wire: bool) -> tuple[StepTimer, dict[int, int]]:
    """One plain all-reduce and two lane operations, the second with known arrivals: the timer, and bytes by peer."""
    timer = StepTimer()
    timer.lap(0.0, 0)
    timer.bucket_ready(1.0, 4000)
    meter = OperationMeter(timer, own_wire)
    meter.on_plain(1.0, 2.0, 100)
    meter.on_lane(Timing("all_reduce", 200, 2.0, 3.0))
    meter.on_lane(Timing("all_to_all", 400, 3.0, 4.0, ((1, 3.5), (2, 4.0))))
    return timer, {peer: account.nbytes for peer, account in meter.ledger.read().items()}


@pytest.mark.parametrize(
    ("own_wire", "expected"), [(False, {ALL_PEERS: 300, 1: 200, 2: 200}), (True, {ALL_PEERS: 100})]
)
def test_operations_are_timed_and_those_of_the_group_are_counted(own_wire: bool, expected: dict[int, int]) -> None:
    timer, counted = metered(own_wire)
    assert counted == expected
    facts = timer.lap(5.0, 0)
    assert facts is not None
    assert (facts.wire_bytes, facts.busy) == (700, 3.0)
