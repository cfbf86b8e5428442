"""An exchange takes one way's delay for each phase and the time of its bytes: no round trip for an acknowledgement, for
opening a transfer, for credit, for a window or for a probe of the path; also after a pause.

Virtual time, the lab's link model, the real LTP and the lanes of training: two sites of two ranks, 300 Mbit/s between
them and 40 ms each way.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gradwire._native import PacketLink, PacketWorld
from gradwire.transport.lanes.base import AllGather, AllToAll
from gradwire.transport.lanes.unfinished_sends import UnfinishedSends
from gradwire.transport.lanes.wire import WireLane
from gradwire.transport.wires.base import RELIABLE, Contract, Delivery

WORLD, RATE, ONE_WAY = 4, 37.5e6, 0.040
# Of a full packet's 1538 bytes on the wire 1424 are payload.
PAYLOAD = 1424 / 1538


class VirtualNetwork:
    """Four hosts in virtual time; remembers which transfers have ended."""

    def __init__(self) -> None:
        self.world = PacketWorld(WORLD, 1)
        self.ended: set[tuple[int, int, bool]] = set()
        for number, (rate, delay) in enumerate(((RATE, ONE_WAY), (RATE, ONE_WAY), (125e6, 0.0001))):
            link = PacketLink()
            link.rate, link.delay, link.queue, link.mtu = rate, delay, 3_000_000, 1500
            self.world.add_link(link, number, 38)
        for one in range(WORLD):
            for other in range(WORLD):
                if one != other:
                    self.world.set_path(one, other, [2 if one // 2 == other // 2 else one // 2])
        for one in range(WORLD):
            for other in range(one + 1, WORLD):
                self.world.connect(one, other)
        self.pause(2.0)

    def now(self) -> float:
        return self.world.now

    def advance(self, limit: float) -> None:
        self.ended |= {(host, token, sent) for _, host, token, sent in self.world.run(limit)}

    def pause(self, seconds: float) -> None:
        end = self.now() + seconds
        while self.now() < end - 1e-9:
            self.advance(end - self.now())


class VirtualTransfer:
    def __init__(self, network: VirtualNetwork, peer: int, key: tuple[int, int, bool]) -> None:
        self.peer = peer
        self._network, self._key = network, key

    @property
    def done(self) -> bool:
        return self._key in self._network.ended

    def wait(self, timeout: float | None = None) -> Delivery:
        end = self._network.now() + 60.0
        while not self.done:
            assert self._network.now() < end, "the transfer does not end"
            self._network.advance(1.0)
        return Delivery(self.peer, 1, 1, (), "complete", 0.0)

    def detach(self) -> None:
        """Contents are not simulated."""

    def cancel(self) -> None:
        raise AssertionError("nothing fails here")


class VirtualWire:
    """The part of a wire that lanes use."""

    def __init__(self, network: VirtualNetwork, rank: int) -> None:
        self.rank = rank
        self._network = network

    def send(self, peer: int, buffer: Any, contract: Contract = RELIABLE, tag: int = 0) -> VirtualTransfer:
        token = _token(tag, self.rank, peer)
        self._network.world.send(self.rank, peer, token, buffer.nbytes)
        return VirtualTransfer(self._network, peer, (self.rank, token, True))

    def post(self, peer: int, buffer: Any, tag: int = 0) -> VirtualTransfer:
        token = _token(tag, peer, self.rank)
        self._network.world.expect(self.rank, peer, token, buffer.nbytes)
        return VirtualTransfer(self._network, peer, (self.rank, token, False))


def _token(tag: int, sender: int, receiver: int) -> int:
    return tag << 8 | sender << 4 | receiver


class Exchange:
    """The two phases of a sharded exchange: parts to their owners, means to all."""

    def __init__(self, part: int) -> None:
        self.network = VirtualNetwork()
        self._lanes = [
            WireLane(VirtualWire(self.network, rank), WORLD, 0, UnfinishedSends(60.0), self.network)  # type: ignore[arg-type]
            for rank in range(WORLD)
        ]
        self._rows = torch.zeros(WORLD, part, dtype=torch.uint8)
        self._received = torch.zeros_like(self._rows)
        # Two ranks of a site send to two of the other, in two phases.
        self.bound = 2 * (ONE_WAY + 4 * part / RATE / PAYLOAD)

    def seconds(self) -> float:
        began = self.network.now()
        for op in (AllToAll(self._rows, self._received), AllGather(self._rows[0], self._received)):
            for pending in [lane.start(op) for lane in self._lanes]:
                pending.wait()
        return self.network.now() - began


@pytest.mark.parametrize("pause", [0.0, 0.5, 12.0])
@pytest.mark.parametrize("part", [2_000, 12_000, 100_000])
def test_an_exchange_takes_one_way_per_phase_and_its_bytes(part: int, pause: float) -> None:
    exchange = Exchange(part)
    for _ in range(6):  # LTP finds its rate
        exchange.seconds()
    for _ in range(4):
        exchange.network.pause(pause)
        assert exchange.seconds() <= 1.15 * exchange.bound
