"""Side routes: frames avoid a busy link over a side route of the plan (`Plan.auxiliary`).

A frame takes a side route when more than two frames wait for its own link and none is on the side route
(`plan.model.auxiliary.takes_side`). A label after the frame carries the tag of the receive that it answers: the relay
forwards both unchanged, and the far end completes the receive with that tag. One receive per side route is always
posted. Known routes stay open when the plan changes, because other members may change plans later. A new epoch starts
with no routes: pending frames were dropped, so the two ends may have counted differently.
"""

from __future__ import annotations

import struct
from collections import Counter
from typing import Final

import torch
from torch import Tensor

from gradwire.plan.model.auxiliary import takes_side
from gradwire.transport.wires.base import Delivery
from gradwire.tree.frame_header import SIDE, spread
from gradwire.tree.frame_io import FrameIO, Sent
from gradwire.tree.partition import MOST_CHUNK
from gradwire.types import Plan

Route = tuple[int, int, int]
_LABEL: Final = struct.Struct("<QQ")
# A piece is at most one and a half chunks; header, counts and padding are added.
_MAX_FRAME: Final = 2 * MOST_CHUNK


class SideRoutes:
    """The side routes that start, relay or end at this member. Runs on the executor's thread."""

    def __init__(self, rank: int, frame_io: FrameIO) -> None:
        self._rank, self._frame_io = rank, frame_io
        self._epoch = 0
        self._known: dict[Route, int | None] = {}
        self._from_here: dict[int, list[Route]] = {}
        self._in_flight: Counter[Route] = Counter()
        self._numbers: Counter[Route] = Counter()
        self.sent_frames = 0

    def learn(self, plan: Plan, epoch: int = 0) -> None:
        """Use this plan's side routes from now on, and post receives on those that lead here."""
        if epoch != self._epoch:
            self._reset(epoch)
        self._from_here = {}
        for (source, target), routes in plan.auxiliary.items():
            for relay in (route[1] for route in routes if len(route) == 3):
                route = (source, relay, target)
                if source == self._rank:
                    self._from_here.setdefault(target, []).append(route)
                elif route not in self._known and self._rank in (relay, target):
                    self._post(route)
                self._known.setdefault(route, None)

    def _reset(self, epoch: int) -> None:
        self._epoch = epoch
        for key in self._known.values():
            if key is not None:
                self._frame_io.cancel(key)
        self._known.clear()
        self._in_flight.clear()
        self._numbers.clear()

    def offer(self, hop: int, tag: int, frame: Tensor, sent: Sent) -> bool:
        """Send over a side route if the link is busy; returns whether it did."""
        for route in self._from_here.get(hop, ()):
            if takes_side(self._frame_io.queued[hop], self._in_flight[route]):
                self._send(route, tag, frame, sent)
                return True
        return False

    def _send(self, route: Route, tag: int, frame: Tensor, sent: Sent) -> None:
        labelled = self._frame_io.take_buffer(frame.numel() + _LABEL.size)
        labelled[: frame.numel()].copy_(frame)
        label = bytearray(_LABEL.pack(tag, frame.numel()))
        labelled[frame.numel() :].copy_(torch.frombuffer(label, dtype=torch.uint8))
        self._in_flight[route] += 1
        self.sent_frames += 1

        def was_sent(delivery: Delivery) -> None:
            self._in_flight[route] -= 1
            self._frame_io.release_buffer(labelled)
            sent(delivery)

        self._frame_io.send(route[1], self._next(route), labelled, sent=was_sent)

    def _post(self, route: Route) -> None:
        tag, previous = self._next(route), route[0] if self._rank == route[1] else route[1]

        def arrived(frame: Tensor, delivery: Delivery) -> None:
            self._post(route)
            if self._rank == route[2]:
                self._deliver(route[0], frame, delivery)
            else:
                self._frame_io.send(
                    route[2], tag, frame[: delivery.size], sent=lambda _: self._frame_io.release_buffer(frame)
                )

        self._known[route] = self._frame_io.post(previous, tag, _MAX_FRAME, arrived, no_deadline=True)

    def _deliver(self, sender: int, frame: Tensor, delivery: Delivery) -> None:
        label = bytes(frame[delivery.size - _LABEL.size : delivery.size].numpy())
        tag, size = _LABEL.unpack(label)
        piece = self._frame_io.take_buffer(size)
        piece.copy_(frame[:size])
        self._frame_io.release_buffer(frame)
        self._frame_io.deliver(sender, tag, piece)

    def _next(self, route: Route) -> int:
        self._numbers[route] += 1
        count = spread(self._epoch, 12) << 20 | self._numbers[route] & 0xFFFFF
        return SIDE << 60 | route[0] << 46 | route[2] << 32 | count
