"""One group, two devices: CPU tensors over gradwire's wires, CUDA tensors by another backend of the same group. No GPU
is needed: see `accelerated`."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.backend import accelerated
from tests.train.ranks import Ranks


@pytest.fixture(scope="module")
def bare(ranks: Ranks) -> Ranks:
    return ranks.on("")


@pytest.fixture(scope="module")
def ours(ranks: Ranks) -> Ranks:
    return ranks.on("gradwire")


def test_every_collective_goes_to_the_backend_of_its_tensors_device(ours: Ranks) -> None:
    ours.run(3, accelerated.both_devices)


def test_ddp_on_the_other_device_is_reduced_by_its_backend(ours: Ranks) -> None:
    assert ours.run(2, accelerated.a_model) == [True, True]


def test_every_group_makes_its_own_second_backend_when_it_needs_one(ours: Ranks) -> None:
    ours.run(3, accelerated.sub_groups)


def test_a_variable_sends_cuda_tensors_over_gradwires_wires(ours: Ranks) -> None:
    ours.run(2, accelerated.staged)


@pytest.mark.parametrize(
    ("name", "variable", "choice"),
    [
        ("cpu:gradwire,cuda:nccl", "", "nccl"),
        ("cpu:gradwire,cuda:gloo", "nccl", "gloo"),
        ("cpu:gradwire,cuda:gradwire", "nccl", "gradwire"),
        ("cpu:gradwire", "nccl", "None"),
        ("gradwire", "gloo", "gloo"),
        ("gradwire", "", "gradwire"),
    ],
)
def test_a_map_of_devices_names_the_second_backend(bare: Ranks, name: str, variable: str, choice: str) -> None:
    """A map before the variable before the default, which is NCCL where torch has it (it does not here)."""
    assert bare.run(2, accelerated.by_name, bare.port, name, variable) == [choice, choice]


def test_nccl_gets_the_arguments_that_torch_would_give_it(ours: Ranks) -> None:
    for rank, given in enumerate(ours.run(2, accelerated.nccl)):
        assert given == {
            "rank": rank, "size": 2, "store": "PrefixStore", "global_ranks_in_group": [0, 1], "group_name": "0",
            "_timeout": timedelta(seconds=60),
        }  # fmt: skip


def test_nccl_that_torch_does_not_have_is_an_error_that_names_the_variable(ours: Ranks) -> None:
    for error in ours.run(2, accelerated.no_nccl):
        assert "GRADWIRE_CUDA=gradwire" in error


def test_a_failed_shutdown_of_the_second_backend_leaves_nothing_else_open_and_is_tried_again(ours: Ranks) -> None:
    for error_text, left, calls in ours.run(2, accelerated.ends_after_a_failed_shutdown):
        assert (error_text, left, calls) == ("not now", 0, ["shutdown", "shutdown"])


def test_where_torchs_groups_lack_a_method_that_of_the_backend_is_called(ours: Ranks) -> None:
    assert ours.run(2, accelerated.older_torch)[0] == ["_set_default_timeout", "_shutdown"]


def test_gloo_is_not_created_by_two_ranks_of_four_which_would_wait_for_the_others(ours: Ranks) -> None:
    first, second, *others = ours.run(4, accelerated.point_to_point_first)
    for error_text in (first, second):
        assert "a CUDA tensor; call one on every rank before the first send or receive" in error_text
    assert others == ["", ""]
