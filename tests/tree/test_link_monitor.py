"""What links showed: a slow one in use is noticed, small messages over a fast one are no measurement."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from gradwire.plan.membership.link_estimates import LEAST_BYTES, Awareness, LinkObservation
from gradwire.tree.link_monitor import MAX_SECONDS, LinkMonitor
from gradwire.types import LinkView

MBIT = 1e6 / 8


class Link:
    """A FrameIO with one peer; every second some bytes were sent and the wire has an estimate."""

    def __init__(self, rate: float | None) -> None:
        self.rate, self.now = rate, 1000.0
        self.frame_io: Any = SimpleNamespace(sent_bytes=Counter(), wire=SimpleNamespace(view=self._view))
        self.link_monitor = LinkMonitor(0, self.frame_io)
        self.link_monitor.observe(self.now)

    def _view(self, peer: int) -> LinkView:
        return LinkView(bandwidth=self.rate, rtprop=0.02)

    def carry(self, *nbytes: float) -> list[LinkObservation]:
        """What is reported while so many bytes go in each of the seconds."""
        reported: list[LinkObservation] = []
        for one in nbytes:
            self.now += 1.0
            self.frame_io.sent_bytes[1] += int(one)
            reported += self.link_monitor.observe(self.now)
        return reported


@pytest.mark.parametrize("rate", [2 * MBIT, MBIT, 0.1 * MBIT])
def test_a_link_that_fell_is_noticed_however_slow_it_is(rate: float) -> None:
    known = Awareness()
    known.observe(LinkObservation(0, 1, 20 * MBIT, 0.02, LEAST_BYTES, 0.0))
    known.report(Link(rate).carry(*[0.8 * rate] * 60))
    assert known.matrix((0, 1), 0.0).rate[0, 1] == rate


def test_seconds_in_which_nothing_went_do_not_count() -> None:
    reported = Link(MBIT).carry(*[0.8 * MBIT, 0, 0, 0] * 3)
    assert [(one.nbytes, one.busy) for one in reported] == [(int(2.4 * MBIT), True)]


def test_small_messages_over_a_link_are_no_measurement() -> None:
    link = Link(20 * MBIT)
    assert all(one.nbytes == 5000 and not one.busy for one in link.carry(*[5000] * 300))
    # A round trip each: the estimate is the rate of the messages, which were sent without a pause.
    link.rate = 1000.0
    reported = link.carry(*[1000] * 300)
    assert len(reported) == 300 / MAX_SECONDS
    assert all(one.nbytes < LEAST_BYTES for one in reported)


def test_only_a_busy_link_is_not_idle() -> None:
    link = Link(20 * MBIT)
    link.carry(200, 200)
    assert link.link_monitor.idle(1, link.now, 1.0)
    link.carry(10 * MBIT)
    assert not link.link_monitor.idle(1, link.now, 1.0)
    link.carry(200, 0)
    assert link.link_monitor.idle(1, link.now, 1.0)
