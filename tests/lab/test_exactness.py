"""The lab has the set rate, delay, loss, queue and schedule, each asserted by ratio or by statistics."""

from __future__ import annotations

import itertools
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gradwire.lab import Lab, LinkStats
from gradwire.lab.measure import iperf, ping_ms, run_on, tcp_mbit, udp_loss, wanted_mbit
from gradwire.network import Change, LinkSpec, Network, RateTrace, preset
from gradwire.network.network import as_hosts, both
from gradwire.units import Rate, Seconds
from tests.lab.conftest import pair
from tests.lab.scripts import COUNTED, INCAST, ORDER, PROBE
from tests.trials import Trial, decide


@pytest.mark.parametrize("mbit", [10, 100, 500, 1000])
def test_tcp_gets_the_rate_less_its_headers(mbit: float) -> None:
    network = pair(mbit, delay_ms=1, queue=int(mbit * 1e6 / 8 * 0.2))
    wanted = wanted_mbit([network.links[0].spec], network.overhead)

    def trial(run: Trial) -> None:
        with Lab(network) as lab, run.measures_in(lab):
            got = tcp_mbit(lab, "a", "b", "-O", "1", seconds=2)
        assert got / wanted == pytest.approx(1, abs=0.03)

    decide(trial)


@pytest.mark.parametrize("one_way_ms", [0, 5, 50])
def test_round_trips_take_twice_the_delay(one_way_ms: float) -> None:
    wanted, allowed = 2 * one_way_ms, 0.5 + 0.02 * 2 * one_way_ms

    def trial(run: Trial) -> None:
        with Lab(pair(1000, one_way_ms)) as lab, run.measures_in(lab):
            median = sorted(ping_ms(lab, "a", "b", count=10, interval=0.02))[5]
        assert abs(median - wanted) <= allowed

    decide(trial)


def receiver_overflows(lab: Lab, host: str) -> int:
    """Packets that arrived at a host but found its socket's buffer full, because the program was not scheduled."""
    lines = [line.split() for line in run_on(lab, host, ["cat", "/proc/net/snmp"], 10).output.splitlines()]
    names, values = (line for line in lines if line[0] == "Udp:")
    return int(values[names.index("RcvbufErrors")])


@pytest.mark.parametrize("loss", [0.001, 0.01, 0.05])
def test_udp_loss_is_the_set_loss_within_statistics(loss: float) -> None:
    def trial(run: Trial) -> None:
        with Lab(pair(100, loss=loss)) as lab, run.measures_in(lab):
            before = lab.stats()
            lost, sent = udp_loss(lab, "a", "b", mbit=30, seconds=2)
            link = lab.stats().since(before).links[0]
            overflows = receiver_overflows(lab, "b")
        assert sent > 3000
        assert link.queue_drops == 0
        assert abs(link.loss_drops - link.offered * loss) <= 4 * math.sqrt(link.offered * loss * (1 - loss))
        # iperf3's own control connection crosses the link too and takes a few of its losses.
        assert abs(lost - link.loss_drops - overflows) <= 5

    decide(trial)


def test_tcp_super_packets_lose_single_wire_packets() -> None:
    """Loss on whole super-packets would drop in clusters and count far fewer packets than were on the wire."""

    def trial(run: Trial) -> None:
        with Lab(pair(500, delay_ms=1, loss=0.01, congestion="bbr")) as lab, run.measures_in(lab):
            before = lab.stats()
            report = iperf(lab, "a", "b", seconds=2)
            link = lab.stats().since(before).links[0]
        assert link.offered_bytes / link.offered > 1300  # full wire packets, not 64 KiB ones
        assert link.offered_bytes / link.offered <= 1538
        assert abs(link.loss_drops - link.offered * 0.01) <= 4 * math.sqrt(link.offered * 0.01 * 0.99)
        sent = report["sum_sent"]
        assert isinstance(sent, dict)
        assert sent["retransmits"] == pytest.approx(link.loss_drops + link.queue_drops, rel=0.1, abs=10)

    decide(trial)


def test_one_seed_gives_the_same_losses_and_another_others(tmp_path: Path) -> None:
    turn = itertools.count()

    def missing(seed: int) -> str:
        ready = str(tmp_path / f"ready{next(turn)}")
        with Lab(pair(100, loss=0.02, seed=seed)) as lab:
            result = lab.run([sys.executable, "-c", COUNTED, "2000", lab.address("b"), ready], timeout=120)
        assert result.code == 0
        return result.hosts[1].output

    first = missing(3)
    assert 10 < len(first.split()) < 80
    assert first == missing(3)
    assert first != missing(4)


def in_order_of_arrival(spec: LinkSpec, count: int, ready: Path) -> tuple[list[int], LinkStats]:
    network = Network("pair", as_hosts("ab"), both("a", "b", spec, LinkSpec()), seed=2)
    with Lab(network) as lab:
        result = lab.run([sys.executable, "-c", ORDER, str(count), lab.address("b"), str(ready)], timeout=120)
    assert result.code == 0, result.hosts[0].output
    return [int(number) for number in result.hosts[1].output.split()], result.stats.links[0]


def test_delayed_packets_are_overtaken(tmp_path: Path) -> None:
    """Held back for 20 ms, while a packet comes every half millisecond or, on a busy machine, a few of them at once."""
    spec = LinkSpec(Rate.from_mbit(100), Seconds(0.001), reorder=0.05, reorder_by=Seconds(0.02))
    came, link = in_order_of_arrival(spec, 1000, tmp_path / "ready")
    assert sorted(came) == list(range(1000)), "nothing is lost or doubled"
    overtaken = sum(later < number for number, later in itertools.pairwise(came))
    assert 20 < link.reordered < 90
    # One that was overtaken comes after a higher number; several in a row count once, and the last have none behind.
    assert 0.3 * link.reordered < overtaken <= link.reordered


def test_packets_that_are_doubled_arrive_twice(tmp_path: Path) -> None:
    spec = LinkSpec(Rate.from_mbit(100), Seconds(0.001), duplicate=0.05)
    came, link = in_order_of_arrival(spec, 1000, tmp_path / "ready")
    assert came == sorted(came)
    assert set(came) == set(range(1000))
    assert 20 < link.duplicated < 90
    # The word that ends the run may be doubled, too.
    assert len(came) - 1000 in (link.duplicated, link.duplicated - 1)


def test_a_full_queue_drops_the_tail_and_delays_by_its_length() -> None:
    queue = 125_000  # 100 ms at 10 Mbit/s
    capacity = 10e6 / 8 * 2 / 1066 + queue / 1066  # 1000 bytes of data are 1066 on the wire

    def trial(run: Trial) -> None:
        with Lab(pair(10, queue=queue)) as lab, run.measures_in(lab):
            before = lab.stats()
            record = iperf(lab, "a", "b", "-u", "-l", "1000", "-b", "20M", seconds=2)["sum"]
            link = lab.stats().since(before).links[0]
        assert isinstance(record, dict)
        assert link.loss_drops == 0
        assert queue - 1538 < link.queue_peak <= queue
        assert record["packets"] - record["lost_packets"] == pytest.approx(capacity, rel=0.05)

    decide(trial)


def test_eight_to_one_overflows_only_the_shared_port() -> None:
    network = preset("incast8")

    def trial(run: Trial) -> None:
        with Lab(network) as lab:
            result = lab.run([sys.executable, "-c", INCAST, "3000000"], timeout=60)
        run.saw(result.stats)
        assert result.code == 0
        links = dict(zip([link.name for link in network.links], result.stats.links, strict=True))
        hot = links["switch->h0"]
        assert hot.queue_drops > 0
        assert hot.queue_peak <= 128 * 1024
        assert hot.queue_drops == pytest.approx(result.stats.queue_drops, rel=0.05)
        total, seconds = map(float, result.hosts[0].output.split())
        assert total == 8 * 3_000_000
        assert total * 8 / seconds / 1e6 <= 1000 * 1448 / 1538 * 1.03

    decide(trial)


def test_a_scheduled_change_takes_effect_within_fifty_milliseconds() -> None:
    # Late enough that both programs have long begun by then, also on a busy machine.
    moment = 3.0
    network = replace(pair(100, 5), changes=(Change(Seconds(moment), "a->b", delay=Seconds(0.05)),))

    def trial(run: Trial) -> None:
        with Lab(network) as lab:
            result = lab.run([sys.executable, "-c", PROBE, str(moment + 0.6), lab.address("b")], timeout=20)
        run.saw(result.stats)
        rows = [tuple(map(float, line.split())) for line in result.hosts[1].output.splitlines()]
        assert len(rows) > 100
        assert abs(min((sent for sent, delay in rows if delay > 0.04), default=math.inf) - moment) <= 0.05

    decide(trial)


def test_a_change_by_hand_takes_effect_and_lasts() -> None:
    def trial(run: Trial) -> None:
        with Lab(pair(100, 1)) as lab:
            lab.apply(Change(Seconds(0), "a-b", delay=Seconds(0.03)))
            with run.measures_in(lab):
                assert min(ping_ms(lab, "a", "b", 5, 0.02)) == pytest.approx(60, abs=1.7)

    decide(trial)


def test_a_trace_carries_its_bytes() -> None:
    trace = RateTrace((0.0, 0.1, 0.15), (Rate.from_mbit(20), 0.0, Rate.from_mbit(5)), 0.25)
    spec = LinkSpec(trace=trace, queue=None)
    network = Network("traced", as_hosts("ab"), both("a", "b", spec, LinkSpec()))

    def trial(run: Trial) -> None:
        with Lab(network) as lab, run.measures_in(lab):
            record = iperf(lab, "a", "b", "-u", "-l", "1000", "-b", "30M", seconds=2)["sum"]
        assert isinstance(record, dict)
        carried = (record["packets"] - record["lost_packets"]) * 1066 / 2
        assert carried / float(trace.mean_rate) == pytest.approx(1, abs=0.08)

    decide(trial)


def test_delays_add_up_over_the_hops_of_a_graph() -> None:
    def trial(run: Trial) -> None:
        with Lab(preset("netstorm9")) as lab, run.measures_in(lab):
            near, far = (min(ping_ms(lab, "s1", other, 5, 0.02)) for other in ("s2", "s9"))
        assert near == pytest.approx(10, abs=1)
        assert far == pytest.approx(40, abs=2)

    decide(trial)


def test_each_pair_of_a_matrix_has_its_own_distance() -> None:
    def trial(run: Trial) -> None:
        with Lab(preset("geo-aws10")) as lab, run.measures_in(lab):
            near = min(ping_ms(lab, "virginia", "ohio", 3, 0.02))
            far = min(ping_ms(lab, "tokyo", "frankfurt", 3, 0.02))
        assert near == pytest.approx(11, abs=0.5 + 0.02 * 11)
        assert far == pytest.approx(223, abs=0.5 + 0.02 * 223)

    decide(trial)
