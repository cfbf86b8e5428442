"""OperationMeter: passes the timing of every operation to the step timer and to the traffic ledger."""

from __future__ import annotations

from gradwire.sense.step_timer import StepTimer
from gradwire.transport.lanes.base import Timing
from gradwire.transport.wires.ledger import ALL_PEERS, Ledger


class OperationMeter:
    """`ledger` holds what the process group carries; a wire of gradwire's own (`own_wire`) keeps its own ledger."""

    def __init__(self, timer: StepTimer, own_wire: bool) -> None:
        self.ledger = Ledger()
        self._timer = timer
        self._own_wire = own_wire

    def on_plain(self, started: float, finished: float, nbytes: int) -> None:
        """An all-reduce of the process group has ended."""
        self._timer.operation(started, finished, nbytes)
        self.ledger.add_received(ALL_PEERS, nbytes, finished - started)

    def on_lane(self, timing: Timing) -> None:
        """An operation on a lane has ended; counted by peer where the lane knows when each peer's part arrived."""
        self._timer.operation(timing.started, timing.finished, timing.nbytes)
        if self._own_wire:
            return
        if not timing.arrivals:
            self.ledger.add_received(ALL_PEERS, timing.nbytes, timing.finished - timing.started)
        for peer, at in timing.arrivals:
            self.ledger.add_received(peer, timing.nbytes // len(timing.arrivals), at - timing.started)
