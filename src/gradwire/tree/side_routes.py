"""Sides: pieces that leave a busy link for a side route of the plan (`Plan.auxiliary`).

A frame takes one when more than two wait for its own link and none is on the side route (`plan.auxiliary.takes_side`).
It carries the tag of the receive that it answers: the relay passes it on as it came, the far end hands it to whoever
waits for that tag from the first sender. One receive per side route always waits; routes once known stay known, because
others may change plans a moment later. A new epoch begins anew: what was under way when the last one ended is gone, and
the ends would count on from different numbers.
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

Way = tuple[int, int, int]
_LABEL: Final = struct.Struct("<QQ")
# A piece is up to half as large again as a chunk; envelope, counts and padding come on top.
_ROOM: Final = 2 * MOST_CHUNK


class SideRoutes:
    """The side routes that begin, pass or end here. Runs on the walker's thread."""

    def __init__(self, rank: int, port: FrameIO) -> None:
        self._rank, self._port = rank, port
        self._epoch = 0
        self._known: dict[Way, int | None] = {}
        self._from_here: dict[int, list[Way]] = {}
        self._on_way: Counter[Way] = Counter()
        self._numbers: Counter[Way] = Counter()
        self.taken = 0

    def learn(self, plan: Plan, epoch: int = 0) -> None:
        """Use this plan's side routes from now on, and listen on those that lead here."""
        if epoch != self._epoch:
            self._begin_anew(epoch)
        self._from_here = {}
        for (source, target), ways in plan.auxiliary.items():
            for relay in (way[1] for way in ways if len(way) == 3):
                way = (source, relay, target)
                if source == self._rank:
                    self._from_here.setdefault(target, []).append(way)
                elif way not in self._known and self._rank in (relay, target):
                    self._await(way)
                self._known.setdefault(way, None)

    def _begin_anew(self, epoch: int) -> None:
        self._epoch = epoch
        for key in self._known.values():
            if key is not None:
                self._port.withdraw(key)
        self._known.clear()
        self._on_way.clear()
        self._numbers.clear()

    def offer(self, hop: int, tag: int, frame: Tensor, sent: Sent) -> bool:
        """Send by a side route, if that is better now; says whether it was done."""
        for way in self._from_here.get(hop, ()):
            if takes_side(self._port.queued[hop], self._on_way[way]):
                self._begin(way, tag, frame, sent)
                return True
        return False

    def _begin(self, way: Way, tag: int, frame: Tensor, sent: Sent) -> None:
        labelled = self._port.take(frame.numel() + _LABEL.size)
        labelled[: frame.numel()].copy_(frame)
        label = bytearray(_LABEL.pack(tag, frame.numel()))
        labelled[frame.numel() :].copy_(torch.frombuffer(label, dtype=torch.uint8))
        self._on_way[way] += 1
        self.taken += 1

        def went(delivery: Delivery) -> None:
            self._on_way[way] -= 1
            self._port.give(labelled)
            sent(delivery)

        self._port.send(way[1], self._next(way), labelled, sent=went)

    def _await(self, way: Way) -> None:
        tag, before = self._next(way), way[0] if self._rank == way[1] else way[1]

        def arrived(frame: Tensor, delivery: Delivery) -> None:
            self._await(way)
            if self._rank == way[2]:
                self._hand_over(way[0], frame, delivery)
            else:
                self._port.send(way[2], tag, frame[: delivery.size], sent=lambda _: self._port.give(frame))

        self._known[way] = self._port.post(before, tag, _ROOM, arrived, patient=True)

    def _hand_over(self, sender: int, frame: Tensor, delivery: Delivery) -> None:
        label = bytes(frame[delivery.size - _LABEL.size : delivery.size].numpy())
        tag, size = _LABEL.unpack(label)
        piece = self._port.take(size)
        piece.copy_(frame[:size])
        self._port.give(frame)
        self._port.arrive(sender, tag, piece)

    def _next(self, way: Way) -> int:
        self._numbers[way] += 1
        count = spread(self._epoch, 12) << 20 | self._numbers[way] & 0xFFFFF
        return SIDE << 60 | way[0] << 46 | way[2] << 32 | count
