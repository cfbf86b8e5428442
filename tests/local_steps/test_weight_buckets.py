"""Which parameters are synchronised together."""

from __future__ import annotations

import torch
from torch import nn

from gradwire.local_steps.weight_buckets import describe, group_parameters


def named(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[tuple[str, nn.Parameter]]:
    return [(f"p{i}", nn.Parameter(torch.zeros(shape, dtype=dtype))) for i, shape in enumerate(shapes)]


def test_groups_keep_the_order_and_the_cap() -> None:
    groups = list(group_parameters(named((10,), (10,), (50,), (10,)), cap=100))
    assert [[name for name, _ in group] for group in groups] == [["p0", "p1"], ["p2"], ["p3"]]


def test_half_precision_is_counted_in_the_float32_of_its_global_weights() -> None:
    groups = list(group_parameters(named((10,), (10,), (10,), dtype=torch.bfloat16), cap=80))
    assert [len(group) for group in groups] == [2, 1]
    assert describe(0, groups[0], is_last=False).nbytes == 80


def test_types_that_differ_in_flat_memory_are_not_mixed() -> None:
    mixed = [*named((4,)), *named((4,), dtype=torch.float16), *named((4,), dtype=torch.float64)]
    assert [len(group) for group in group_parameters(mixed)] == [2, 1]


def test_a_bucket_names_where_each_parameter_lies() -> None:
    bucket = describe(3, named((2, 3), (4,)), is_last=True)
    assert [(part.name, part.offset, part.shape) for part in bucket.slices] == [("p0", 0, (2, 3)), ("p1", 6, (4,))]
    assert (bucket.index, bucket.numel, bucket.is_last) == (3, 10, True)
