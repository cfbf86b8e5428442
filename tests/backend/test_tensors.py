"""What the backend does with a call's tensors before it sends: tags, checks in gloo's wording, staging."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from gradwire.backend import tags
from gradwire.backend.staging import StagedList, Staging
from gradwire.backend.tensor_checks import TensorError, alike, parts_fit, root_in, single, sized, split
from gradwire.errors import ConfigError


def test_no_two_concurrent_messages_have_the_same_tag() -> None:
    groups, numbers = (0, 1, tags.GROUPS_LIMIT - 1), (0, 1, 4095)
    found = [
        tag
        for group, number in product(groups, numbers)
        for tag in (
            tags.collective(group, number, 0),
            tags.collective(group, number, tags.PARTS_LIMIT - 1),
            tags.opening(group, 0, number),
            tags.opening(group, tags.USER_TAGS - 1, number),
            tags.payload(group, 0, number),
            tags.payload(group, tags.USER_TAGS - 1, number),
            tags.monitored_barrier(group, number, False),
            tags.monitored_barrier(group, number, True),
            tags.shm_setup(group, number),
        )
    ]
    found += [tags.notice(group) for group in groups]
    assert len(set(found)) == len(found)
    assert all(0 <= tag < 1 << 64 for tag in found)


def test_numbers_wrap_around_inside_their_own_group_and_kind() -> None:
    assert tags.collective(3, 1 << 26, 5) == tags.collective(3, 0, 5)
    assert tags.opening(3, 8, 1 << 12) == tags.opening(3, 8, 0)


@pytest.mark.parametrize("tag", [-1, tags.USER_TAGS])
def test_a_users_tag_outside_its_range_is_refused(tag: int) -> None:
    with pytest.raises(ConfigError, match=r"tag: -?\d+ is outside 0"):
        tags.check_user_tag(tag)


def test_a_contiguous_tensor_is_used_in_place() -> None:
    tensor = torch.arange(6.0).view(2, 3).requires_grad_()
    staging = Staging()
    assert staging.read(tensor).data_ptr() == tensor.data_ptr()
    flat = staging.write(tensor)
    assert flat.shape == (6,)
    flat.fill_(7)
    assert tensor.detach().eq(7).all()


@pytest.mark.parametrize("transposed", [True, False])
def test_results_reach_a_tensor_that_cannot_be_used_in_place(transposed: bool) -> None:
    base = torch.arange(12.0).view(3, 4)
    tensor = base.t() if transposed else base[:, ::2]
    before = tensor.clone()
    staging = Staging()
    flat = staging.write(tensor, read=True)
    assert torch.equal(flat, before.flatten())
    flat += 1
    assert torch.equal(tensor, before)
    staging.copy_back()
    assert torch.equal(tensor, before + 1)


def test_lazily_conjugated_and_negated_values_are_read_as_they_are_seen() -> None:
    values = torch.tensor([1 + 2j, 3 - 4j])
    assert Staging().read(values.conj()).tolist() == [1 - 2j, 3 + 4j]
    assert Staging().read(values.conj().imag).tolist() == [-2.0, 4.0]


def test_a_sparse_tensor_is_refused() -> None:
    with pytest.raises(ConfigError, match="takes dense tensors"):
        Staging().read(torch.eye(2).to_sparse())


def test_tensors_that_travel_as_one_get_their_own_parts_back() -> None:
    tensors = [torch.zeros(2, 2), torch.zeros(3), torch.zeros(4, 2).t()]
    StagedList(torch.arange(15.0), tensors).copy_back()
    assert [tensor.flatten().tolist() for tensor in tensors] == [
        [0, 1, 2, 3], [4, 5, 6], [7, 8, 9, 10, 11, 12, 13, 14],
    ]  # fmt: skip


def test_mistakes_are_named_in_the_words_that_torch_users_search_for() -> None:
    two, ints = torch.zeros(2), torch.zeros(2, dtype=torch.int32)
    for call, words in (
        (lambda: single([two, two], "broadcast"), "broadcast: takes one tensor per rank, not 2"),
        (lambda: root_in(4, 4, "reduce"), "invalid root rank 4; this group has ranks 0 to 3"),
        (lambda: root_in(-1, 4, "reduce"), "invalid root rank -1"),
        (lambda: sized([two], 2, None, "gather"), "needs 2 tensors, one for each rank, not 1"),
        (lambda: sized([two, torch.zeros(3)], 2, 2, "gather"), "every tensor must have 2 elements, not 2 or 3"),
        (lambda: parts_fit(torch.zeros(5), two, 2, "output", "input"), r"world size times input size \(2 x 2\), not 5"),
        (lambda: parts_fit(torch.zeros(4), ints, 2, "output", "input"), "invalid tensor type"),
        (lambda: alike([two, ints], two, "input"), "expected torch.float32, got torch.int32"),
    ):
        with pytest.raises(TensorError, match=words):
            call()
    assert issubclass(TensorError, RuntimeError)
    assert single([two], "broadcast") is two
    assert root_in(3, 4, "reduce") == 3


def test_all_to_all_splits_rows_equally_or_as_told() -> None:
    tensor = torch.arange(12.0).view(6, 2)
    equal = split(tensor.view(-1), tensor, [], 3, "input")
    assert [part.numel() for part in equal] == [4, 4, 4]
    uneven = split(tensor.view(-1), tensor, [1, 0, 5], 3, "input")
    assert [part.tolist() for part in uneven[:2]] == [[0, 1], []]
    assert uneven[2].numel() == 10
    empty = torch.zeros(0, 2)
    assert [part.numel() for part in split(empty.view(-1), empty, [], 3, "input")] == [0, 0, 0]


@pytest.mark.parametrize(("splits", "size"), [([], 4), ([3, 2], 2), ([6], 2)])
def test_splits_that_do_not_cover_the_rows_are_refused(splits: list[int], size: int) -> None:
    tensor = torch.zeros(6, 2)
    with pytest.raises(TensorError, match=r"all_to_all: .*6"):
        split(tensor.view(-1), tensor, splits, size, "input")
