"""The send queue gives a wire enough to stay busy, oldest piece first, and keeps the rest."""

from __future__ import annotations

from gradwire.clock import VirtualClock
from gradwire.tree.send_queue import MIN_BYTES, MIN_FRAMES, VIEW_AGE, SendQueue
from gradwire.types import LinkView

FRAME = 40_000


class MeasuredWire:
    """A wire with an estimate of the way to each peer; counts how often it is asked."""

    def __init__(self, **links: LinkView) -> None:
        self.links = {int(name[1:]): view for name, view in links.items()}
        self.asked = 0

    def views(self) -> dict[int, LinkView]:
        self.asked += 1
        return self.links


class Started:
    """A queue, and the names of the frames that it gave to the wire, in order."""

    def __init__(self, wire: object) -> None:
        self.clock = VirtualClock()
        self.queue = SendQueue(wire, self.clock)
        self.names: list[str] = []

    def put(self, name: str, piece: int = 0, peer: int = 1, nbytes: int = FRAME) -> None:
        self.queue.put(peer, (0, 0, piece), nbytes, lambda: self.names.append(name))


SLOW = LinkView(rtprop=0.001, bandwidth=1e6)
LONG = LinkView(rtprop=0.1, bandwidth=1e6)


def test_frames_wait_once_the_wire_has_its_window_and_the_oldest_piece_goes_first() -> None:
    started = Started(MeasuredWire(p1=SLOW))
    for name, piece in (("a", 0), ("b", 1), ("d", 3), ("c", 2)):
        started.put(name, piece)
    assert started.names == ["a", "b"]
    assert not started.queue.empty
    started.queue.done(1, FRAME)
    assert started.names == ["a", "b", "c"]
    started.queue.done(1, FRAME)
    assert started.names == ["a", "b", "c", "d"]
    assert started.queue.empty


def test_frames_of_one_piece_keep_their_order() -> None:
    started = Started(MeasuredWire(p1=SLOW))
    for name in "abcde":
        started.put(name)
    for _ in range(3):
        started.queue.done(1, FRAME)
    assert started.names == list("abcde")


def test_a_slow_link_gets_two_large_frames_and_no_third() -> None:
    started = Started(MeasuredWire(p1=SLOW))
    for name in "abc":
        started.put(name, nbytes=10 * MIN_BYTES)
    assert len(started.names) == MIN_FRAMES


def test_a_long_link_gets_four_bandwidth_delay_products() -> None:
    started = Started(MeasuredWire(p1=LONG))
    for index in range(30):
        started.put(str(index))
    assert len(started.names) * FRAME == 4 * 1e6 * 0.1


def test_a_link_without_an_estimate_gets_everything() -> None:
    for wire in (object(), MeasuredWire(), MeasuredWire(p1=LinkView(rtprop=0.001))):
        started = Started(wire)
        for index in range(30):
            started.put(str(index))
        assert len(started.names) == 30


def test_peers_have_windows_of_their_own() -> None:
    started = Started(MeasuredWire(p1=SLOW, p2=SLOW))
    for name in "abc":
        started.put(name)
    started.put("other", peer=2)
    assert started.names == ["a", "b", "other"]
    started.queue.done(2, FRAME)
    assert started.names == ["a", "b", "other"]


def test_dropped_frames_never_start_and_the_peer_begins_with_an_empty_window() -> None:
    started = Started(MeasuredWire(p1=SLOW, p2=SLOW))
    for peer in (1, 2):
        for name in "abc":
            started.put(f"{name}{peer}", peer=peer)
    started.queue.drop(1)
    started.put("d1")
    started.put("e1")
    assert started.names == ["a1", "b1", "a2", "b2", "d1", "e1"]
    assert not started.queue.empty
    started.queue.drop()
    assert started.queue.empty


def test_estimates_are_read_again_only_when_they_are_old() -> None:
    wire = MeasuredWire(p1=SLOW)
    started = Started(wire)
    for name in "abcdef":
        started.put(name)
    assert wire.asked == 1
    wire.links = {1: LONG}
    started.clock.advance(2 * VIEW_AGE)
    started.put("g")
    assert wire.asked == 2
    assert len(started.names) == 7
