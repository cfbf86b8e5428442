"""A rank is a straggler when the others waited for it for a step, not because it was last."""

from __future__ import annotations

from gradwire.sense.stragglers import AGAIN, StragglerDetector


def settled(seconds: float = 1.0) -> StragglerDetector:
    detector = StragglerDetector()
    for step in range(5):
        assert detector.detect({0: 0.0, 1: 0.1 * seconds, 2: 0.2 * seconds}, seconds, float(step)) is None
    return detector


def test_a_rank_behind_by_more_than_a_step_is_reported_with_its_delay() -> None:
    assert settled().detect({0: 10.0, 1: 10.2, 2: 13.1}, 4.0, 10.0) == (2, 3.0)


def test_two_ranks_are_enough_to_find_a_straggler() -> None:
    detector = StragglerDetector()
    assert detector.detect({0: 0.0, 1: 0.0}, 1.0, 0.0) is None
    assert detector.detect({0: 5.0, 1: 2.0}, 4.0, 1.0) == (0, 3.0)


def test_short_steps_may_vary() -> None:
    assert settled(0.01).detect({0: 10.0, 1: 10.0, 2: 10.2}, 0.2, 10.0) is None


def test_a_rank_that_stays_slow_is_reported_once_a_minute() -> None:
    detector = settled()
    assert detector.detect({0: 10.0, 1: 13.0}, 4.0, 10.0) is not None
    assert detector.detect({0: 20.0, 1: 23.0}, 4.0, 10.0 + AGAIN / 2) is None
    assert detector.detect({0: 30.0, 1: 33.0}, 4.0, 10.0 + AGAIN) is not None
