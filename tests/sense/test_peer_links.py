"""What a rank knows of each of its links: rates where the path was the limit, lower bounds elsewhere."""

from __future__ import annotations

import pytest

from gradwire.sense.peer_links import LEAST, RATES, PeerLinks
from gradwire.types import LinkFacts, LinkView

MB = 1e6


def filled(rate: float, trip: float = 0.02) -> LinkView:
    return LinkView(rtprop=trip, bandwidth=rate, floor=rate)


def test_a_rate_that_the_path_limited_is_known_after_some_steps() -> None:
    links = PeerLinks()
    for step in range(LEAST):
        assert links.facts(1).rate == 0.0
        links.take({1: filled(5 * MB)}, {}, float(step))
    assert links.facts(1) == LinkFacts(1, 0.02, 5 * MB, 5 * MB, 5 * MB)
    assert links.facts(2) == LinkFacts(2, 0.0, 0.0, 0.0, 5 * MB), "nothing is known of it"


def test_what_a_sender_limited_is_a_lower_bound() -> None:
    links = PeerLinks()
    for step in range(20):
        links.take({1: LinkView(rtprop=0.02, floor=3 * MB)}, {}, float(step))
    assert links.facts(1) == LinkFacts(1, 0.02, 0.0, 3 * MB, 0.0)


def test_a_queue_shows_that_a_transfer_filled_the_path() -> None:
    """100 kB in 220 ms, of which one round trip of 20 ms was latency."""
    links, still = PeerLinks(), PeerLinks()
    for step in range(1, LEAST + 1):
        moved = {1: (1e5 * step, 0.22 * step)}
        links.take({1: LinkView(rtprop=0.02, queueing=0.1)}, moved, float(step))
        still.take({1: LinkView(rtprop=0.02, queueing=0.001)}, moved, float(step))
    assert links.facts(1).rate == pytest.approx(5e5)
    assert still.facts(1).rate == 0.0, "without a queue the window may have been the limit"
    assert still.facts(1).floor == pytest.approx(1e5 / 0.2), "a lower bound, likewise without the round trip"


def test_a_transfer_as_short_as_its_round_trip_shows_at_most_twice_its_average_rate() -> None:
    links = PeerLinks()
    links.take({1: LinkView(rtprop=0.08)}, {1: (0.0, 0.0)}, 0.0)
    links.take({1: LinkView(rtprop=0.08)}, {1: (1e5, 0.09)}, 1.0)
    assert links.facts(1).floor == pytest.approx(1e5 / 0.045), "not 10 MB/s: such times are not exact"
    assert links.facts(1).together == pytest.approx(1e5 / 0.09)


def test_small_and_short_transfers_show_no_rate() -> None:
    links = PeerLinks()
    for step in range(1, 10):
        small, short = (1e3 * step, 0.1 * step), (1e5 * step, 0.03 * step)
        view = LinkView(rtprop=0.02, queueing=0.1)
        links.take({1: view, 2: view}, {1: small, 2: short}, float(step))
    assert links.facts(1).rate == links.facts(2).rate == 0.0


def test_of_several_connections_to_a_rank_the_fastest_counts_and_ranks_of_a_host_share_them() -> None:
    links = PeerLinks()
    ranks = {70: (1,), 71: (1,), 80: (2, 3), 90: ()}
    for step in range(LEAST):
        seen = {70: filled(2 * MB), 71: filled(6 * MB), 80: filled(1 * MB), 90: filled(9 * MB)}
        links.take(seen, {}, float(step), ranks)
    assert links.facts(1).rate == 6 * MB
    assert links.facts(2).rate == links.facts(3).rate == MB
    assert links.facts(1).together == 7 * MB, "each host once, and no connection that leads nowhere"


def test_what_a_link_carried_in_bad_moments_is_not_its_rate() -> None:
    links = PeerLinks()
    for step in range(RATES):
        links.take({1: filled(10 * MB if step % 3 == 0 else 2 * MB)}, {}, float(step))
    assert links.facts(1).rate == 10 * MB
    for step in range(RATES, 2 * RATES):
        links.take({1: filled(1 * MB)}, {}, float(step))
    assert links.facts(1).rate == 1 * MB, "a link that became slow"


def test_a_connection_that_was_opened_again_counts_from_zero() -> None:
    links = PeerLinks()
    view = LinkView(rtprop=0.02, queueing=0.1)
    for step in range(LEAST):
        total = (LEAST - step) * 1e5  # less than before
        links.take({1: view}, {1: (total, total / 5e5 + 0.02)}, float(step))
    assert links.facts(1).rate == pytest.approx(5e5)


def test_a_shorter_round_trip_that_was_measured_otherwise_counts() -> None:
    links = PeerLinks()
    links.take({1: filled(MB, trip=0.03)}, {}, 0.0)
    assert links.facts(1, 0.02).rtprop == 0.02
    assert links.facts(1, None).rtprop == 0.03
    assert links.facts(5, 0.01).rtprop == 0.01
