"""A peer that leaves in order is only missed where something was still expected of it."""

from __future__ import annotations

import time

import pytest

from gradwire.clock import MonotonicClock
from gradwire.plan.membership.control_messages import Abort
from gradwire.tree.control_channel import ControlChannel
from gradwire.tree.frame_io import FrameIO, LostPeerError
from tests.exchange.grid import LIMIT, ltp_wires


def turn_until_left(port: FrameIO, peer: int) -> None:
    deadline = time.monotonic() + LIMIT
    while peer not in port.left and time.monotonic() < deadline:
        port.turn(0.1)
    assert peer in port.left


def test_a_goodbye_while_nothing_was_expected_is_no_loss() -> None:
    with ltp_wires(2) as (near, far):
        port = FrameIO(near, MonotonicClock(), LIMIT)
        channel = ControlChannel(port, lambda sender, news: None)
        channel.listen([1])
        far.close()
        turn_until_left(port, 1)
        channel.tell(1, Abort("nobody listens any more"))
        assert port.idle
        port.close()


def test_a_goodbye_of_somebody_whose_data_is_awaited_is_a_loss() -> None:
    with ltp_wires(2) as (near, far):
        port = FrameIO(near, MonotonicClock(), LIMIT)
        ControlChannel(port, lambda sender, news: None).listen([1])
        port.post(1, 7, 100, lambda frame, delivery: None)
        far.close()
        with pytest.raises(LostPeerError, match="closed the connection"):
            turn_until_left(port, 2)
        port.close()


def test_where_others_go_on_alone_every_goodbye_counts() -> None:
    with ltp_wires(2) as (near, far):
        port = FrameIO(near, MonotonicClock(), LIMIT, part_in_peace=False)
        ControlChannel(port, lambda sender, news: None).listen([1])
        far.close()
        with pytest.raises(LostPeerError, match="closed the connection"):
            turn_until_left(port, 2)
        port.close()
