"""Times of operations on a network, against what TCP and links are known to do."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from gradwire.errors import ConfigError
from gradwire.network import Change, LinkSpec, Network
from gradwire.network.network import SWITCH, CrossTraffic, Host, as_hosts, host_names, star
from gradwire.network.presets import preset
from gradwire.network.rate_trace import RateTrace
from gradwire.simulate.transfer import INITIAL_WINDOW, NetworkTimes
from gradwire.units import Rate, Seconds

MEGABYTE = 1_000_000


def starred(mbit: float, trip: float, loss: float = 0.0, hosts: int = 2, trace: RateTrace | None = None) -> Network:
    """A star whose round trip is `trip`; each direction crosses two links, of which only the first one loses."""
    clean = LinkSpec(Rate.from_mbit(mbit), Seconds(trip / 4), trace=trace)
    members = as_hosts(host_names(hosts))
    return Network("", members, star(members, lambda _: (replace(clean, loss=loss), clean)), (SWITCH,))


@pytest.mark.parametrize("wire", ["group", "tcp", "ltp"])
@pytest.mark.parametrize("trip", [0.001, 0.05])
def test_a_clean_link_is_filled(wire, trip: float) -> None:
    rate = NetworkTimes(starred(100, trip, hosts=4), wire).saturating_rate()
    assert 0.85 * 100 <= 8e-6 * rate <= 100


@pytest.mark.slow
def test_random_loss_limits_cubic_as_its_response_function_says() -> None:
    """RFC 9438: the window is about 1.22 / sqrt(p) packets where CUBIC grows as Reno does."""
    loss, trip = 0.005, 0.02
    rate = NetworkTimes(starred(1000, trip, loss), "tcp").saturating_rate(seconds=20.0)
    expected = 1.22 / math.sqrt(loss) * 1448 / trip
    assert 0.6 * expected <= rate <= 1.6 * expected


def test_loss_does_not_limit_ltp() -> None:
    rate = NetworkTimes(starred(100, 0.05, loss=0.01), "ltp").saturating_rate()
    assert 8e-6 * rate > 85


def test_a_small_message_takes_half_a_round_trip_and_a_groups_receiver_announces_itself_first() -> None:
    tcp, group = NetworkTimes(starred(100, 0.1), "tcp"), NetworkTimes(starred(100, 0.1), "group")
    assert tcp.direct(0.0, 100) == pytest.approx(0.05, rel=0.05)
    assert group.direct(0.0, 100) == pytest.approx(0.1, rel=0.05)


def test_tcp_starts_slowly_and_again_after_an_idle_time() -> None:
    net = starred(300, 0.08)
    times = NetworkTimes(net, "tcp")
    first = times.direct(0.0, MEGABYTE)
    begun = first + 0.01
    warm = times.direct(begun, MEGABYTE) - begun
    assert warm < 0.7 * first, "the window has opened"
    later = begun + 30.0
    assert times.direct(later, MEGABYTE) - later > 1.3 * warm, "and is closed by idle time"
    kept = NetworkTimes(net, "tcp", restarts=False)
    again = kept.direct(0.0, MEGABYTE) + 30.0
    assert kept.direct(again, MEGABYTE) - again < 0.7 * first, "unless the kernel keeps it"


def test_a_transfer_within_the_initial_window_takes_no_extra_round_trip() -> None:
    times = NetworkTimes(starred(1000, 0.1), "tcp")
    assert times.direct(0.0, int(INITIAL_WINDOW) * 1400) < 0.06
    assert NetworkTimes(starred(1000, 0.1), "tcp").direct(0.0, 2 * int(INITIAL_WINDOW) * 1448) > 0.14


def test_flows_share_a_link() -> None:
    two, four = (NetworkTimes(starred(100, 0.001, hosts=n), "tcp").direct(0.0, MEGABYTE) for n in (2, 4))
    assert four == pytest.approx(3 * two, rel=0.1), "a host sends to three others over one access link"


def test_operations_queue_behind_each_other() -> None:
    times = NetworkTimes(starred(100, 0.001), "tcp")
    first = times.direct(0.0, MEGABYTE)
    second = times.direct(0.0, MEGABYTE)
    assert second == pytest.approx(2 * first, rel=0.1)


def test_a_change_of_rate_and_a_trace_are_followed() -> None:
    net = replace(starred(100, 0.001), changes=(Change(Seconds(10), "*", Rate.from_mbit(10)),))
    times = NetworkTimes(net, "ltp")
    before = times.direct(0.0, MEGABYTE)
    after = times.direct(20.0, MEGABYTE) - 20.0
    assert after == pytest.approx(10 * before, rel=0.1)
    gap = RateTrace((0.0, 1.0, 3.0), (Rate.from_mbit(100), 0.0, Rate.from_mbit(100)), 10.0)
    stalled = NetworkTimes(starred(100, 0.001, trace=gap), "tcp")
    assert stalled.direct(1.5, 1000) == pytest.approx(3.0, abs=0.1), "nothing passes in the gap"


def test_changes_of_loss_and_delay_are_followed_and_a_trace_goes_on() -> None:
    change = Change(Seconds(10), "*", delay=Seconds(0.1), loss=0.05)
    times = NetworkTimes(replace(starred(100, 0.001), changes=(change,)), "tcp")
    before = times.direct(0.0, MEGABYTE)
    assert times.flows[0, 1].loss == 0
    after = times.direct(20.0, MEGABYTE) - 20.0
    assert times.flows[0, 1].loss > 0.05, "two links"
    assert after > before + 0.4, "four access links of 0.1 s"
    gap = RateTrace((0.0, 1.0, 3.0), (Rate.from_mbit(100), 0.0, Rate.from_mbit(100)), 10.0)
    lost = Change(Seconds(0.5), "*", loss=0.0)
    stalled = NetworkTimes(replace(starred(100, 0.001, trace=gap), changes=(lost,)), "tcp")
    assert stalled.direct(1.2, 1000) == pytest.approx(3.0, abs=0.1), "the trace does not begin anew"


def test_cross_traffic_takes_its_share() -> None:
    net = starred(100, 0.001)
    more = Host("x0", rank=False)
    spec = net.links[0].spec
    hosts = (*net.hosts, more)
    busy = Network("", hosts, star(hosts, spec), (SWITCH,), cross=(CrossTraffic("h0", "x0", flows=1),))
    alone, shared = (NetworkTimes(one, "tcp").direct(0.0, MEGABYTE) for one in (net, busy))
    assert shared == pytest.approx(2 * alone, rel=0.1)


def test_a_ring_takes_as_many_rounds_as_it_has_hops() -> None:
    times = NetworkTimes(starred(1000, 0.1, hosts=4), "group")
    assert times.ring(0.0, 100) == pytest.approx(6 * 0.05, rel=0.05)


def test_every_rank_of_a_ring_has_its_own_link() -> None:
    direct, ring = (NetworkTimes(starred(100, 0.001, hosts=4), "tcp") for _ in range(2))
    whole = direct.direct(0.0, MEGABYTE)
    assert ring.ring(0.0, MEGABYTE) == pytest.approx(2 * whole, rel=0.1), "six rounds of one part against three parts"


def test_known_networks_get_what_the_lab_measured() -> None:
    """docs of the platform: CUBIC gets 21 to 30 Mbit/s in a flow of wan-us-eu, whose trunk carries 300."""
    times = NetworkTimes(preset("wan-us-eu", 4), "group")
    each = times.saturating_rate() / 3
    assert 10 <= 8e-6 * each <= 45


def test_an_unknown_wire_is_refused() -> None:
    with pytest.raises(ConfigError, match="transport: 'quic' cannot be simulated; choose one of group, tcp, ltp"):
        NetworkTimes(starred(100, 0.001), "quic")  # type: ignore[arg-type]
