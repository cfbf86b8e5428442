"""Rounds of transfers: every pair once in each direction, and no host twice in a round."""

from __future__ import annotations

from itertools import permutations

import pytest

from gradwire.doctor.schedule import rounds, target_of, transfers


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8, 9, 16])
def test_every_ordered_pair_has_one_transfer_and_hosts_are_never_shared(count: int) -> None:
    schedule = transfers(count)
    assert sorted(pair for pairs in schedule for pair in pairs) == sorted(permutations(range(count), 2))
    for pairs in schedule:
        hosts = [host for pair in pairs for host in pair]
        assert len(hosts) == len(set(hosts))


def test_an_even_number_of_hosts_wastes_no_round() -> None:
    assert all(len(pairs) == 4 for pairs in rounds(8))
    assert len(rounds(8)) == 7


def test_a_budget_cuts_rounds_but_leaves_both_directions_of_one() -> None:
    assert len(transfers(64, most=10)) == 10
    there, back = transfers(64, most=0)
    assert [(b, a) for a, b in there] == back


def test_a_rank_that_only_receives_has_no_target() -> None:
    assert target_of(0, [(0, 3), (1, 2)]) == 3
    assert target_of(2, [(0, 3), (1, 2)]) is None
