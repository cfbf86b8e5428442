"""A gradwire group supports every call that torch's bindings allow, with gloo's results: with and without options, bare
tensors, subgroups, lookups of backends and stores, splits, and tensors that do not fit."""

from __future__ import annotations

import pytest

from tests.backend import forms
from tests.train.ranks import Ranks


@pytest.fixture(scope="module")
def gloo(ranks: Ranks) -> Ranks:
    return ranks.on("gloo")


@pytest.fixture(scope="module")
def ours(ranks: Ranks) -> Ranks:
    return ranks.on("gradwire")


@pytest.mark.parametrize("members", [[0, 1, 2], [1, 2]])
def test_every_collective_in_every_form_is_as_gloos(gloo: Ranks, ours: Ranks, members: list[int]) -> None:
    theirs = gloo.run(3, forms.results, members)
    for mine, other in zip(ours.run(3, forms.results, members), theirs, strict=True):
        assert mine == other


def test_devices_backends_and_store_are_found_as_in_a_gloo_group(gloo: Ranks, ours: Ranks) -> None:
    assert ours.run(2, forms.looked_up) == gloo.run(2, forms.looked_up)


def test_a_device_without_a_backend_is_the_error_that_torch_expects(gloo: Ranks, ours: Ranks) -> None:
    assert ours.run(1, forms.no_such_device) == gloo.run(1, forms.no_such_device)


def test_parts_of_a_group_are_groups_on_the_ranks_that_they_name(ours: Ranks) -> None:
    def expected(members: list[int], rank: int, name: str) -> object:
        summed = [float(len(members) * n + 10 * sum(members)) for n in range(4)]
        return (summed, members.index(rank), len(members), name) if rank in members else None

    for rank, parts in enumerate(ours.run(4, forms.parts)):
        half = [0, 1] if rank < 2 else [2, 3]
        assert parts == [
            expected([0, 1, 2, 3], rank, "all"),
            expected([0, 1], rank, "0:split:[0, 1]"),
            expected(half, rank, f"half{half[0]}"),
        ]


def test_a_part_of_a_part_is_a_group_of_its_own(ours: Ranks) -> None:
    *others, second, third = ours.run(4, forms.part_of_a_part)
    assert others == [None, None]
    assert second == third == [50.0, 52.0, 54.0, 56.0]


def test_torchs_split_group_makes_groups_that_work(ours: Ranks) -> None:
    for rank, (summed, members) in enumerate(ours.run(4, forms.split_by_torch)):
        assert members == ([0, 2] if rank % 2 == 0 else [1, 3])
        assert summed == [2.0 * n + 10 * sum(members) for n in range(4)]


def test_tensors_that_do_not_fit_are_refused_in_gloos_words_and_harm_nothing(ours: Ranks) -> None:
    assert ours.run(3, forms.misfits) == [[], [], []]


def test_strided_tensors_give_what_contiguous_ones_give(ours: Ranks) -> None:
    """Gloo takes them too, and reads and writes the memory between the elements."""
    assert ours.run(3, forms.strided) == [[], [], []]


@pytest.mark.parametrize("wait_all", [False, True])
def test_torchs_monitored_barrier_names_the_late_rank(ours: Ranks, wait_all: bool) -> None:
    first, second, _ = ours.run(3, forms.late, wait_all)
    assert f"{'Ranks' if wait_all else 'Rank'} 2 failed to pass monitoredBarrier in 1000 ms" in first
    assert second.startswith("Rank 1 successfully reached monitoredBarrier, but received errors")
    assert "2 failed to pass" in second


def test_torchs_monitored_barrier_is_for_members(ours: Ranks) -> None:
    assert ours.run(3, forms.not_a_member) == ["passed"] * 3
