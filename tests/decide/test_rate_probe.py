"""The rate probe: due only where steps would not show a faster network, and ever less often."""

from __future__ import annotations

from gradwire.decide.rate_probe import LONGEST_PROBE, PROBE_AFTER, RateProbe
from gradwire.types import LinkView, View

RATE = 1e7


def steps_until_due(
    probe: RateProbe, nbytes: int, *, busy: float = 0.1, age: float = 1.0, confidence: float = 1.0
) -> int | None:
    """None: not within more steps than the longest interval."""
    view = View(LinkView(0.02, RATE, RATE, age=age, confidence=confidence))
    for step in range(LONGEST_PROBE + 1):
        if probe.due:
            return step
        probe.take(nbytes, busy, view)
    return None


def test_a_probe_is_due_where_latency_hides_the_bytes() -> None:
    assert steps_until_due(RateProbe(), 10_000) == PROBE_AFTER


def test_no_probe_is_due_where_the_bytes_take_most_of_the_time() -> None:
    assert steps_until_due(RateProbe(), 600_000) is None


def test_a_probe_is_due_where_the_bandwidth_is_only_guessed() -> None:
    assert steps_until_due(RateProbe(), 600_000, confidence=0.25) == PROBE_AFTER


def test_no_probe_is_due_where_every_step_measures_the_bandwidth() -> None:
    assert steps_until_due(RateProbe(), 10_000, age=0.0) is None


def test_probes_are_sent_ever_less_often_until_the_network_changes() -> None:
    probe, waited = RateProbe(), []
    for _ in range(5):
        waited.append(steps_until_due(probe, 10_000))
        probe.sent()
    assert waited == [PROBE_AFTER, 2 * PROBE_AFTER, 4 * PROBE_AFTER, LONGEST_PROBE, LONGEST_PROBE]
    probe.network_changed()
    assert steps_until_due(probe, 10_000) == PROBE_AFTER


def test_a_later_probe_may_take_longer() -> None:
    early, late = RateProbe(), RateProbe()
    late.sent()
    assert steps_until_due(early, 0) != steps_until_due(late, 0)
    assert 1 < early.longest < late.longest
