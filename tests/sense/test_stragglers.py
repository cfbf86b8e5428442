"""A rank is called late when it kept the others waiting for a step, not because somebody is always last."""

from __future__ import annotations

from gradwire.sense.stragglers import AGAIN, StragglerDetector


def settled(seconds: float = 1.0) -> StragglerDetector:
    lateness = StragglerDetector()
    for step in range(5):
        assert lateness.judge({0: 0.0, 1: 0.1 * seconds, 2: 0.2 * seconds}, seconds, float(step)) is None
    return lateness


def test_a_rank_behind_by_more_than_a_step_is_named_with_its_lateness() -> None:
    assert settled().judge({0: 10.0, 1: 10.2, 2: 13.1}, 4.0, 10.0) == (2, 3.0)


def test_two_ranks_are_enough_to_name_one() -> None:
    lateness = StragglerDetector()
    assert lateness.judge({0: 0.0, 1: 0.0}, 1.0, 0.0) is None
    assert lateness.judge({0: 5.0, 1: 2.0}, 4.0, 1.0) == (0, 3.0)


def test_short_steps_may_jitter() -> None:
    assert settled(0.01).judge({0: 10.0, 1: 10.0, 2: 10.2}, 0.2, 10.0) is None


def test_a_rank_that_stays_slow_is_named_once_a_minute() -> None:
    lateness = settled()
    assert lateness.judge({0: 10.0, 1: 13.0}, 4.0, 10.0) is not None
    assert lateness.judge({0: 20.0, 1: 23.0}, 4.0, 10.0 + AGAIN / 2) is None
    assert lateness.judge({0: 30.0, 1: 33.0}, 4.0, 10.0 + AGAIN) is not None
