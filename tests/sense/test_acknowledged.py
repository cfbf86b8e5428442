"""Acknowledgements take the place of what pulses guessed, and of nothing else."""

from __future__ import annotations

from gradwire.flow import LinkView, View
from gradwire.sense.acknowledged import acknowledged

PULSES = View(LinkView(rtprop=0.5, bandwidth=1e6, delay=0.2, queueing=0.4, confidence=1.0))


def test_the_group_is_as_its_worst_link() -> None:
    links = {
        1: LinkView(rtprop=0.01, queueing=0.002, loss=0.0, confidence=1.0),
        2: LinkView(rtprop=0.03, queueing=0.001, loss=0.02, confidence=1.0),
    }
    view = acknowledged(PULSES, 0, links)
    assert (view.group.rtprop, view.group.queueing, view.group.loss) == (0.03, 0.002, 0.02)
    assert (view.group.bandwidth, view.group.delay) == (1e6, 0.2)
    assert view.links[(0, 2)].loss == 0.02


def test_without_acknowledgements_nothing_changes() -> None:
    assert acknowledged(PULSES, 0, {}) is PULSES
    assert acknowledged(PULSES, 0, {1: LinkView()}) is PULSES
