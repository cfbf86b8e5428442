"""An operation ends with what it receives; its sends finish behind it, and nothing about them is lost or forgotten."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gradwire.clock import MonotonicClock
from gradwire.errors import LinkError, PeerClosedError
from gradwire.transport.lanes.base import AllGather, AllToAll, Losses
from gradwire.transport.lanes.unfinished_sends import UnfinishedSends
from gradwire.transport.lanes.wire import WireLane
from gradwire.transport.wires.base import RELIABLE, Contract, Delivery, Reason

WORLD, SIZE = 3, 100


class ScriptedTransfer:
    """Ends when the test says so."""

    def __init__(self, peer: int) -> None:
        self.peer = peer
        self.done = self.detached = self.cancelled = self.waited = False
        self.reason: Reason = "complete"
        self.missing: tuple[tuple[int, int], ...] = ()
        self.error: Exception | None = None

    def end(self, error: Exception | None = None) -> None:
        self.done, self.error = True, error

    def wait(self, timeout: float | None = None) -> Delivery:
        self.waited = True
        if self.error is not None:
            raise self.error
        if not self.done:
            raise TimeoutError
        return Delivery(self.peer, SIZE, SIZE, self.missing, self.reason, 0.0)

    def detach(self) -> None:
        self.detached = True

    def cancel(self) -> None:
        self.cancelled = True


class ScriptedWire:
    """Everything posted arrives at once; sends end when the test says so."""

    rank = 0

    def __init__(self) -> None:
        self.sends: list[ScriptedTransfer] = []

    def post(self, peer: int, buffer: Any, tag: int = 0) -> ScriptedTransfer:
        transfer = ScriptedTransfer(peer)
        transfer.end()
        return transfer

    def send(self, peer: int, buffer: Any, contract: Contract = RELIABLE, tag: int = 0) -> ScriptedTransfer:
        self.sends.append(ScriptedTransfer(peer))
        return self.sends[-1]


def opened(limit: int = 1 << 20) -> tuple[ScriptedWire, UnfinishedSends, WireLane]:
    wire, sends = ScriptedWire(), UnfinishedSends(60.0, limit)
    return wire, sends, WireLane(wire, WORLD, 0, sends, MonotonicClock())  # type: ignore[arg-type]


def gather() -> AllGather:
    return AllGather(torch.zeros(SIZE, dtype=torch.uint8), torch.zeros(WORLD, SIZE, dtype=torch.uint8))


def test_an_operation_does_not_wait_for_its_own_sends() -> None:
    wire, sends, lane = opened()
    lane.start(gather()).wait()
    assert [send.detached for send in wire.sends] == [True, True]
    assert len(sends) == 2


def test_a_send_that_has_ended_is_neither_copied_nor_kept() -> None:
    wire, sends, lane = opened()
    pending = lane.start(gather())
    for send in wire.sends:
        send.end()
    pending.wait()
    assert not any(send.detached for send in wire.sends)
    assert len(sends) == 0


def test_sends_that_ended_are_forgotten_by_the_next_operation() -> None:
    wire, sends, lane = opened()
    lane.start(gather()).wait()
    wire.sends[1].end()
    lane.start(gather())
    assert len(sends) == 1


def test_the_next_operation_raises_the_failure_of_a_send() -> None:
    wire, _, lane = opened()
    lane.start(gather()).wait()
    wire.sends[1].end(LinkError("rank 2 counts as lost"))
    with pytest.raises(LinkError, match="rank 2"):
        lane.start(gather())


def test_a_send_that_its_receiver_cancelled_is_a_failure() -> None:
    wire, _, lane = opened()
    lane.start(gather()).wait()
    wire.sends[0].reason = "cancelled"
    wire.sends[0].end()
    with pytest.raises(LinkError, match="rank 1 did not take part"):
        lane.start(gather())


def test_a_send_keeps_the_deadline_of_its_operation() -> None:
    wire = ScriptedWire()
    sends = UnfinishedSends(0.0)
    lane = WireLane(wire, WORLD, 0, sends, MonotonicClock())  # type: ignore[arg-type]
    lane.start(gather()).wait()
    with pytest.raises(LinkError, match="did not complete within 0 s"):
        lane.start(gather())


def test_unfinished_sends_use_bounded_memory() -> None:
    """With room for three parts, the first send of the second operation's four must have ended."""
    wire, sends, lane = opened(limit=3 * SIZE)
    lane.start(gather()).wait()
    pending = lane.start(gather())
    wire.sends[0].end()
    pending.wait()
    assert wire.sends[0].waited
    assert len(sends) == 3


def test_close_waits_for_every_send() -> None:
    wire, sends, lane = opened()
    lane.start(gather()).wait()
    for send in wire.sends:
        send.end()
    lane.close()
    assert all(send.waited for send in wire.sends)
    assert len(sends) == 0


def test_close_raises_the_failure_of_a_send() -> None:
    wire, _, lane = opened()
    lane.start(gather()).wait()
    for send in wire.sends:
        send.end(LinkError("rank 1 counts as lost"))
    with pytest.raises(LinkError, match="rank 1"):
        lane.close()


def test_a_peer_that_closed_first_wanted_no_more() -> None:
    wire, _, lane = opened()
    lane.start(gather()).wait()
    for send in wire.sends:
        send.end(PeerClosedError("rank 1 has closed the connection"))
    lane.close()


def test_after_a_failed_operation_close_waits_for_nothing() -> None:
    wire, _, lane = opened()
    lane.start(gather()).wait()
    wire.sends[0].end(LinkError("rank 1 counts as lost"))
    with pytest.raises(LinkError):
        lane.start(gather())
    lane.close()
    assert not wire.sends[1].waited


def test_a_tolerant_exchange_ends_before_its_receivers_have_reported() -> None:
    wire, sends, lane = opened()
    losses = Losses(0.9, (0,) * WORLD)
    rows = torch.zeros(WORLD, SIZE, dtype=torch.uint8)
    lane.start(AllToAll(rows, torch.zeros_like(rows), losses)).wait()
    assert not losses.reported()
    assert len(sends) == 0
    for send in wire.sends:
        send.end()
    wire.sends[1].missing = ((4, 8),)
    assert losses.reported()
    assert losses.undelivered() == {1: (), 2: ((4, 8),)}
