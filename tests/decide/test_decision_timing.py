"""Decision timing: ranks wait for a decision one step earlier only where it arrives in time, step after step."""

from __future__ import annotations

from gradwire.decide.decision_timing import EARLY, IN_TIME, SAFE, DecisionTiming


def test_decisions_are_early_after_several_that_came_in_time_on_every_rank() -> None:
    timing = DecisionTiming()
    delays = [timing.take([-0.1, -0.02]) for _ in range(IN_TIME + 2)]
    assert delays == [SAFE] * (IN_TIME - 1) + [EARLY] * 3


def test_one_late_rank_returns_to_the_safe_delay() -> None:
    timing = DecisionTiming()
    for _ in range(IN_TIME):
        timing.take([-0.1, -0.1])
    assert timing.delay == EARLY
    assert timing.take([-0.1, 0.001]) == SAFE
    assert [timing.take([-0.1]) for _ in range(IN_TIME)] == [SAFE] * (IN_TIME - 1) + [EARLY]


def test_what_is_unknown_changes_nothing() -> None:
    timing = DecisionTiming()
    assert [timing.take([0.0, 0.0]) for _ in range(2 * IN_TIME)] == [SAFE] * (2 * IN_TIME)
    assert [timing.take([-0.1, 0.0]) for _ in range(IN_TIME)][-1] == EARLY, "by those that know"
    assert timing.take([]) == EARLY
