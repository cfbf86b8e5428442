"""Acknowledgements replace the network estimates from steps and pulses, and nothing else."""

from __future__ import annotations

import pytest

from gradwire.sense.ack_stats import AckMeter, AckStats
from gradwire.types import Acks, LinkView, View

ESTIMATED = View(LinkView(rtprop=0.5, bandwidth=1e6, best=2e6, delay=0.2, queueing=0.4, confidence=1.0))
LINKS = {
    1: LinkView(rtprop=0.01, queueing=0.002, loss=0.0, confidence=1.0),
    2: LinkView(rtprop=0.03, queueing=0.001, loss=0.02, confidence=1.0),
}


def test_a_rank_reports_its_worst_link() -> None:
    acks = AckMeter().take(LINKS, {})
    assert (acks.rtprop, acks.queueing, acks.loss, acks.bandwidth) == (0.03, 0.002, 0.02, None)


def test_an_exchange_lasts_as_long_as_its_slowest_link() -> None:
    meter = AckMeter()
    assert meter.take(LINKS, {1: (1e6, 0.1), 2: (1e6, 1.0)}).bandwidth == pytest.approx(2e6)
    assert meter.take(LINKS, {1: (2e6, 0.2), 2: (2e6, 1.5)}).bandwidth == pytest.approx(2e6 / 0.5)


def test_a_step_with_few_bytes_gives_no_rate() -> None:
    meter = AckMeter()
    assert meter.take(LINKS, {1: (1000.0, 0.5)}).bandwidth is None
    # Its bytes and its time count at the next step.
    assert meter.take(LINKS, {1: (1e6, 1.0)}).bandwidth == pytest.approx(1e6)
    assert meter.take(LINKS, {1: (1e6 + 10, 1.001)}).bandwidth == pytest.approx(1e6)


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
