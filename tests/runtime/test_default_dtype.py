"""Default dtype: torch's default type does not affect residuals, factors or results."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from gradwire.compress.residual import ResidualSpan
from gradwire.exchange import factor_sum
from gradwire.tree.accumulator import SharedMaskAccumulator
from tests.runtime.sessions import Sessions

SHAPES = [[("w", (60, 100)), ("b", (144,))]]


@pytest.fixture
def default(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_default_dtype()
    yield
    torch.set_default_dtype(before)


def run(level: str, default: torch.dtype) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Two steps of three ranks; the restored means and the residuals of rank 0."""
    generator = torch.Generator().manual_seed(3)
    parts = [[torch.randn(6144, generator=generator, dtype=torch.float32)] for _ in range(3)]
    torch.set_default_dtype(default)
    world = Sessions(3, SHAPES)
    restored = [world.step(level, parts)[0][0] for _ in range(2)]
    residuals = world.feedbacks[0].state_dict()["residuals"]
    world.close()
    return restored, residuals


@pytest.mark.usefixtures("default")
@pytest.mark.parametrize("other", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize(
    "level", ["fp16", "int4", "int2", "topk:0.05", "sharedk:0.1+int8", "lowrank:2", "lowrank:2+int8", "prune:0.5+int8"]
)
def test_residuals_are_float32_under_any_default_type(level: str, other: torch.dtype) -> None:
    expected, expected_residuals = run(level, torch.float32)
    restored, residuals = run(level, other)
    for one, another in zip(expected, restored, strict=True):
        assert torch.equal(one, another)
    assert {value.dtype for value in residuals.values()} == {torch.float32}
    assert all(torch.equal(expected_residuals[name], value) for name, value in residuals.items())


@pytest.mark.usefixtures("default")
def test_shards_of_factors_travel_with_float32_values_under_any_default_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factor_sum, "gathers_whole", lambda nbytes, world_size: False)
    expected, _ = run("lowrank:2+int8", torch.float32)
    restored, _ = run("lowrank:2+int8", torch.bfloat16)
    for one, another in zip(expected, restored, strict=True):
        assert torch.equal(one, another)


@pytest.mark.usefixtures("default")
def test_a_tree_sums_shared_mask_values_in_float32() -> None:
    torch.set_default_dtype(torch.bfloat16)
    gradient = torch.full((8,), 1.0 + 2.0**-12, dtype=torch.float32)
    accumulator = SharedMaskAccumulator(
        "fp32",
        gradient,
        ResidualSpan(torch.zeros(8, dtype=torch.float32), 0),
        torch.arange(4, dtype=torch.int32),
        None,
    )
    accumulator.begin()
    body = torch.empty(accumulator.body.nbytes, dtype=torch.uint8)
    accumulator.pack(body)
    accumulator.restore(body)
    assert gradient[:4].tolist() == [1.0 + 2.0**-12] * 4
