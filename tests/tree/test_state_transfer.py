"""A replica state is sent from one member to another in frames."""

from __future__ import annotations

import time

import torch

from gradwire.clock import MonotonicClock
from gradwire.tree.frame_io import FrameIO
from gradwire.tree.state_transfer import FRAME, StateReceiver, StateSender
from tests.tree.grid import LIMIT, FakeNet


def test_a_state_of_many_frames_arrives_complete() -> None:
    draw = torch.Generator().manual_seed(0)
    tensors = [torch.randn(n, generator=draw) for n in (700_001, 0, 1, FRAME, 12_345)]
    received: list[tuple[bytes, torch.Tensor]] = []
    net = FakeNet()
    ends = [FrameIO(net.wire(rank), MonotonicClock(), LIMIT) for rank in range(2)]
    sender = StateSender(ends[0], 1, (7, 3), (b"header", tensors))
    receiver = StateReceiver(ends[1], 0, (7, 3), lambda *state: received.append(state))
    sender.begin()
    receiver.begin(sender.header, sender.body)
    deadline = time.monotonic() + LIMIT
    while not received and time.monotonic() < deadline:
        for frame_io in ends:
            frame_io.poll(0.01)
    header, body = received[0]
    assert header == b"header"
    assert torch.equal(body.clone().view(torch.float32), torch.cat(tensors))
    for frame_io in ends:
        frame_io.close()
