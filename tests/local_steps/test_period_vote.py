"""How ranks of an elastic plan agree on the length of the next round."""

from __future__ import annotations

import pytest

from gradwire.local_steps.period_vote import VALUES, PeriodVote


def means(*proposals: int | None) -> list[float]:
    """Of the ranks that took part, in float32 as they arrive."""
    cast = [PeriodVote(lambda one=one: one).cast() for one in proposals]  # type: ignore[misc]
    return [sum(values) / len(cast) for values in zip(*cast, strict=True)]


def test_a_rank_contributes_as_many_values_as_are_read() -> None:
    assert len(means(None)) == len(means(20)) == VALUES


@pytest.mark.parametrize("others", range(8))
def test_one_proposal_counts_however_many_ranks_took_part(others: int) -> None:
    assert PeriodVote.result(means(50, *[None] * others), 20) == 50


def test_without_a_proposal_the_length_stays() -> None:
    assert PeriodVote.result(means(None, None, None), 20) == 20
    assert PeriodVote.result([0.0, 0.0], 7) == 7


def test_of_two_proposals_one_valid_length_results() -> None:
    assert PeriodVote.result(means(10, 100, None), 20) == 50
    assert PeriodVote.result(means(20, 20, None), 100) == 20
