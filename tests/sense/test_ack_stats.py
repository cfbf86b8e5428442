"""Acknowledgements replace the network estimates from steps and pulses, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gradwire.sense.ack_stats import AckMeter, AckStats
from gradwire.sense.floor import Floor
from gradwire.types import Acks, LinkView, View

ESTIMATED = View(LinkView(rtprop=0.5, bandwidth=1e6, best=2e6, delay=0.2, queueing=0.4, confidence=1.0))
LINKS = {
    1: LinkView(rtprop=0.01, queueing=0.002, loss=0.0, confidence=1.0),
    2: LinkView(rtprop=0.03, queueing=0.001, loss=0.02, confidence=1.0),
}


def test_a_rank_reports_its_worst_link() -> None:
    acks = AckMeter().take(LINKS, {})
    assert (acks.rtprop, acks.queueing, acks.loss, acks.bandwidth) == (0.03, 0.002, 0.02, None)


def limited(**rates: float) -> dict[int, LinkView]:
    """Links that their paths limited, at these rates."""
    return {int(peer[1:]): replace(LINKS[int(peer[1:])], bandwidth=rate) for peer, rate in rates.items()}


def test_what_a_sender_with_little_to_send_moved_is_a_lower_bound() -> None:
    meter = AckMeter()
    acks = meter.take(LINKS, {1: (1e6, 0.1), 2: (1e6, 1.0)})
    assert acks.bandwidth is None
    assert acks.floor == pytest.approx(2e6)
    acks = meter.take(LINKS, {1: (2e6, 0.2), 2: (2e6, 1.5)})
    assert acks.bandwidth is None
    assert acks.floor == pytest.approx(2e6 / 0.5)


def test_links_that_work_at_the_same_time_add_up() -> None:
    acks = AckMeter().take(limited(_1=2e6, _2=3e6), {1: (2e6, 1.0), 2: (3e6, 1.0)})
    assert acks.bandwidth == pytest.approx(5e6)


def test_links_that_take_turns_do_not_add_up() -> None:
    """Two lanes of a process group: one carries the first phase of an exchange, the other its second."""
    links, totals = limited(_1=5e6, _2=5e6), {1: (2.5e6, 0.5), 2: (2.5e6, 0.5)}
    assert AckMeter().take(links, totals, 1.0, in_turns=True).bandwidth == pytest.approx(5e6)
    assert AckMeter().take(links, totals, 0.5, in_turns=True).bandwidth == pytest.approx(10e6)


def test_one_link_that_its_path_did_not_limit_leaves_the_sum_unknown() -> None:
    links, totals = {**LINKS, **limited(_1=2e6)}, {1: (2e6, 1.0), 2: (2e6, 1.0)}
    assert AckMeter().take(links, totals).bandwidth is None
    # One that carries next to nothing does not matter.
    assert AckMeter().take(links, {1: (2e6, 1.0), 2: (10_000.0, 1.0)}).bandwidth == pytest.approx(2e6, rel=0.01)


def test_a_filter_that_still_has_the_rate_before_a_fall_is_not_believed() -> None:
    acks = AckMeter().take(limited(_1=20e6), {1: (2e6, 1.0)})
    assert acks.bandwidth == pytest.approx(3e6)


def test_a_step_with_few_bytes_gives_no_rate() -> None:
    meter, links = AckMeter(), limited(_1=1e6)
    assert meter.take(links, {1: (1000.0, 0.5)}).floor == 0.0
    # Its bytes and its time count at the next step.
    assert meter.take(links, {1: (1e6, 1.0)}).floor == pytest.approx(1e6)
    assert meter.take(links, {1: (1e6 + 10, 1.001)}).floor == 0.0, "one sample is not reported twice"


def test_a_connection_that_was_opened_again_counts_from_zero() -> None:
    meter = AckMeter()
    meter.take(LINKS, {1: (9e6, 3.0)})
    assert meter.take(LINKS, {1: (1e6, 1.0)}).floor == pytest.approx(1e6)


def test_lower_bounds_never_lower_an_estimate() -> None:
    stats = AckStats()
    for now in range(3):
        stats.update(ESTIMATED, 0, {}, [Acks(0.01, 5e6, floor=4e6)], now=float(now))
    for now in range(3, 50):
        view = stats.update(ESTIMATED, 0, {}, [Acks(0.01, None, floor=2e5)], now=float(now))
    assert (view.group.bandwidth, view.group.floor) == (5e6, 4e6)
    assert view.group.age == pytest.approx(47.0), "and the View says how old it is"


def test_a_lower_bound_above_the_estimate_raises_it() -> None:
    stats = AckStats()
    stats.update(ESTIMATED, 0, {}, [Acks(0.01, 1e6)], now=0.0)
    for now in range(1, 4):
        view = stats.update(ESTIMATED, 0, {}, [Acks(0.01, None, floor=3e6)], now=float(now))
    assert view.group.bandwidth == view.group.floor == 3e6


def test_one_lucky_burst_is_no_lower_bound() -> None:
    floor = Floor()
    for rate in (1e6, 50e6, 1.1e6, 1.2e6):
        floor.add(rate)
    assert floor.value == 1.1e6


def test_the_group_has_the_values_of_its_worst_rank() -> None:
    reports = [Acks(0.03, 5e6, 0.002, 0.02), Acks(0.08, 3e6, 0.0, 0.0)]
    view = AckStats().update(ESTIMATED, 0, LINKS, reports, now=1.0)
    group = view.group
    assert (group.rtprop, group.bandwidth, group.best, group.queueing, group.loss) == (0.08, 3e6, 3e6, 0.002, 0.02)
    assert group.delay == 0.2
    assert view.links[(0, 2)].loss == 0.02


def test_one_disturbed_step_does_not_change_the_rate() -> None:
    stats = AckStats()
    for now, rate in enumerate((3e6, 1e5, 3e6)):
        view = stats.update(ESTIMATED, 0, {}, [Acks(0.01, rate)], now=float(now))
    assert view.group.bandwidth == 3e6


def test_until_every_rank_has_a_rate_the_estimate_from_steps_is_used() -> None:
    view = AckStats().update(ESTIMATED, 0, {}, [Acks(0.01, 5e6), Acks(0.02)], now=1.0)
    assert (view.group.rtprop, view.group.bandwidth) == (0.02, 1e6)


def test_without_acknowledgements_nothing_changes() -> None:
    assert AckStats().update(ESTIMATED, 0, {}, [Acks(), Acks()], now=1.0) is ESTIMATED
