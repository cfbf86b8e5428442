"""A peer that leaves in order counts as lost only where data was still expected from it."""

from __future__ import annotations

import time

import pytest

from gradwire.clock import MonotonicClock
from gradwire.plan.membership.control_messages import Abort
from gradwire.tree.control_channel import ControlChannel
from gradwire.tree.frame_io import FrameIO, LostPeerError
from tests.tree.grid import LIMIT, ltp_wires


def turn_until_left(frame_io: FrameIO, peer: int) -> None:
    deadline = time.monotonic() + LIMIT
    while peer not in frame_io.left and time.monotonic() < deadline:
        frame_io.poll(0.1)
    assert peer in frame_io.left


def test_a_peer_that_leaves_while_nothing_is_expected_is_no_loss() -> None:
    with ltp_wires(2) as (near, far):
        frame_io = FrameIO(near, MonotonicClock(), LIMIT)
        channel = ControlChannel(frame_io)
        channel.listen([1])
        far.close()
        turn_until_left(frame_io, 1)
        channel.send(1, Abort("the peer has left"))
        assert frame_io.idle
        frame_io.close()


def test_a_peer_that_leaves_while_its_data_is_expected_is_a_loss() -> None:
    with ltp_wires(2) as (near, far):
        frame_io = FrameIO(near, MonotonicClock(), LIMIT)
        ControlChannel(frame_io).listen([1])
        frame_io.post(1, 7, 100, lambda frame, delivery: None)
        far.close()
        with pytest.raises(LostPeerError, match="closed the connection"):
            turn_until_left(frame_io, 2)
        frame_io.close()


def test_with_elastic_plans_every_closed_connection_is_a_loss() -> None:
    with ltp_wires(2) as (near, far):
        frame_io = FrameIO(near, MonotonicClock(), LIMIT, allow_leaving=False)
        ControlChannel(frame_io).listen([1])
        far.close()
        with pytest.raises(LostPeerError, match="closed the connection"):
            turn_until_left(frame_io, 2)
        frame_io.close()
