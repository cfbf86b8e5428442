"""FrameIO: a peer that leaves normally counts as lost only where data was still expected from it, and dropping the
transfers of one peer changes nothing for the others."""

from __future__ import annotations

import time

import pytest
import torch
from torch import Tensor

from gradwire.clock import MonotonicClock
from gradwire.plan.membership.control_messages import Abort
from gradwire.tree.control_channel import ControlChannel
from gradwire.tree.frame_io import FrameIO
from gradwire.tree.lost_peer import LostPeerError
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


def test_dropping_one_peer_keeps_what_arrived_early_from_another() -> None:
    with ltp_wires(1) as (near,):
        frame_io = FrameIO(near, MonotonicClock(), LIMIT)
        got: list[Tensor] = []
        for tag in (7, 8):
            frame_io.deliver(2, tag, torch.full((4,), float(tag)))
        frame_io.post(2, 7, 16, lambda frame, delivery: got.append(frame))
        frame_io.drop(1)
        frame_io.post(2, 8, 16, lambda frame, delivery: got.append(frame))
        frame_io.poll(0.0)
        assert [float(frame[0]) for frame in got] == [7.0, 8.0]
        frame_io.close()


def test_frames_in_flight_are_counted_after_others_were_dropped() -> None:
    with ltp_wires(3) as (near, *_):
        frame_io = FrameIO(near, MonotonicClock(), LIMIT)
        for peer in (1, 2):
            frame_io.send(peer, 7, torch.zeros(16, dtype=torch.uint8))
        frame_io.send(2, 8, torch.zeros(16, dtype=torch.uint8), data=False)
        frame_io.drop(1)
        assert dict(frame_io.queued) == {2: 2}
        frame_io.drop_step_data()
        assert dict(frame_io.queued) == {2: 1}
        frame_io.close()
