"""Fragments: which layers are together, and when each is sent."""

from __future__ import annotations

from itertools import pairwise

import pytest
from torch import nn

from gradwire.errors import ConfigError
from gradwire.local_steps.fragments import balanced, fragment_at, split_layers


def names(module: nn.Module, count: int) -> list[list[str]]:
    return [[name for name, _ in part] for part in split_layers(module.named_parameters(), count)]


def test_a_layer_is_never_divided_and_layers_keep_their_order() -> None:
    module = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))
    assert names(module, 2) == [
        ["0.weight", "0.bias", "1.weight", "1.bias"],
        ["2.weight", "2.bias", "3.weight", "3.bias"],
    ]
    assert [one for part in names(module, 3) for one in part] == [name for name, _ in module.named_parameters()]


def test_tied_weights_are_in_one_fragment() -> None:
    module = nn.Sequential(*(nn.Linear(8, 8) for _ in range(3)))
    module[2].weight = module[0].weight
    assert names(module, 3) == [["0.weight", "0.bias"], ["1.weight", "1.bias"], ["2.bias"]]


def test_more_fragments_than_layers_are_refused_with_the_number_of_layers() -> None:
    with pytest.raises(ConfigError, match=r"num_fragments: 3 is more than the 2 layers .* set it to 2 or less"):
        names(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)), 3)


@pytest.mark.parametrize(
    ("sizes", "count", "expected"),
    [
        ([1, 1, 1, 1], 2, [2, 4]),
        ([1, 1, 1, 1], 4, [1, 2, 3, 4]),
        ([100, 1, 1], 3, [1, 2, 3]),
        ([1, 1, 100], 2, [2, 3]),
        ([100, 1, 1, 98], 2, [1, 4]),
        ([5], 1, [1]),
    ],
)
def test_groups_are_about_equal_and_none_is_empty(sizes: list[int], count: int, expected: list[int]) -> None:
    assert balanced(sizes, count) == expected


def test_no_group_is_much_larger_than_a_fair_share_of_equal_layers() -> None:
    for layers in range(1, 40):
        for count in range(1, layers + 1):
            ends = balanced([1] * layers, count)
            lengths = [end - first for first, end in zip([0, *ends], ends, strict=False)]
            assert sum(lengths) == layers
            assert max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize(("every", "count"), [(6, 3), (7, 3), (20, 4), (5, 5), (4, 1)])
def test_every_fragment_is_sent_once_a_round_the_last_one_with_the_last_step(every: int, count: int) -> None:
    sent = [fragment_at(step, every, count) for step in range(1, every + 1)]
    assert [one for one in sent if one is not None] == list(range(count))
    assert sent[-1] == count - 1
    steps = [0, *(step for step, one in enumerate(sent, start=1) if one is not None)]
    gaps = [later - earlier for earlier, later in pairwise(steps)]
    assert min(gaps) == every // count, "the longest delay that is allowed"
