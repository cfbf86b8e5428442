"""Low-rank factors: orthonormal, exact in their order, and the same bits whatever the processor's libraries choose."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor

from gradwire.compress.kernels import factors
from gradwire.compress.lowrank import LowRank, basis_of
from gradwire.level import Level
from gradwire.types import ParameterSlice

SHAPES = [(1, 1), (2, 2), (7, 3), (64, 4), (513, 4), (4096, 16), (300, 8)]


def drawn(rows: int, rank: int, seed: int = 1) -> Tensor:
    return torch.randn(rows, rank, generator=torch.Generator().manual_seed(seed))


def degenerate(rows: int, rank: int, kind: str) -> Tensor:
    if kind == "zero":
        return torch.zeros(rows, rank)
    if kind == "equal columns":
        return drawn(rows, 1).expand(rows, rank).contiguous()
    if kind == "tiny":
        return 1e-30 * drawn(rows, rank)
    return drawn(rows, rank) * torch.logspace(0, -12, rank)


@pytest.mark.parametrize(("rows", "rank"), SHAPES)
def test_the_basis_is_orthonormal_and_spans_the_columns(rows: int, rank: int) -> None:
    given = drawn(rows, rank)
    basis = given.clone()
    factors.orthonormalise(basis)
    wide = basis.double()
    torch.testing.assert_close(wide.T @ wide, torch.eye(rank, dtype=torch.float64), atol=1e-6, rtol=0)
    torch.testing.assert_close(wide @ (wide.T @ given.double()), given.double(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["zero", "equal columns", "tiny", "graded"])
@pytest.mark.parametrize(("rows", "rank"), [(64, 4), (513, 8)])
def test_dependent_columns_become_independent_directions(rows: int, rank: int, kind: str) -> None:
    basis = degenerate(rows, rank, kind)
    factors.orthonormalise(basis)
    wide = basis.double()
    torch.testing.assert_close(wide.T @ wide, torch.eye(rank, dtype=torch.float64), atol=1e-6, rtol=0)


@pytest.mark.parametrize("kind", ["normal", "zero", "equal columns", "tiny", "graded"])
@pytest.mark.parametrize(("rows", "rank"), SHAPES)
def test_native_code_and_its_reference_write_the_same_bits(rows: int, rank: int, kind: str) -> None:
    native = drawn(rows, rank) if kind == "normal" else degenerate(rows, rank, kind)
    reference = native.clone()
    factors.orthonormalise(native)
    factors.reference_orthonormalise(reference)
    assert torch.equal(native, reference)


@pytest.mark.parametrize(("rows", "rank"), SHAPES)
@pytest.mark.parametrize("columns", [1, 255, 256, 257, 1000])
def test_the_product_is_the_sum_in_the_order_of_the_rank(rows: int, rank: int, columns: int) -> None:
    p, q = drawn(rows, rank), drawn(rank, columns, seed=2)
    native, reference = torch.empty(rows, columns), torch.empty(rows, columns)
    factors.multiply_factors(p, q, native)
    factors.reference_multiply(p, q, reference)
    assert torch.equal(native, reference)
    torch.testing.assert_close(native, p @ q, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("size", [1e-30, 1e-6, 1.0, 1e30])
def test_the_basis_for_the_next_step_is_orthonormal_at_any_size_of_gradient(size: float) -> None:
    given = (drawn(300, 3) * torch.tensor([1.0, 1e-4, 1e-2])) * size
    basis = basis_of(given).double()
    torch.testing.assert_close(basis.T @ basis, torch.eye(3, dtype=torch.float64), atol=2e-4, rtol=0)
    wide = given.double() / size
    torch.testing.assert_close(basis @ (basis.T @ wide), wide, atol=1e-5, rtol=1e-3)


def test_the_basis_of_next_to_nothing_is_finite() -> None:
    assert torch.equal(basis_of(torch.zeros(30, 3)), torch.zeros(30, 3))
    equal = drawn(30, 1).expand(30, 4)
    assert basis_of(equal).isfinite().all()
    assert float(basis_of(equal).norm(dim=0).max()) < 1.01
    assert basis_of(drawn(30, 3) * 1e-44).isfinite().all()


def test_factors_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="shapes differ"):
        factors.multiply_factors(drawn(4, 2), drawn(3, 5), torch.empty(4, 5))


def restored() -> str:
    """What a rank computes from sums that all ranks share: a digest of its bytes."""
    generator = torch.Generator().manual_seed(3)
    shapes = {"a": (512, 300), "b": (64, 1000), "c": (33, 47)}
    slices, offset = [], 0
    for name, shape in shapes.items():
        slices.append(ParameterSlice(name, offset, shape, shape[0] * shape[1]))
        offset += shape[0] * shape[1]
    lowrank = LowRank(Level.parse("lowrank:4"))
    layout = lowrank.layout(slices)
    # Multiples of 1/256: sums that no library can round in two ways, as the sums over ranks are given.
    left = torch.randint(-512, 512, (layout.left_numel,), generator=generator) / 256.0
    right = torch.randint(-512, 512, (layout.right_numel,), generator=generator) / 256.0
    out = torch.empty(offset)
    lowrank.restore(layout, lowrank.bases(layout, left), right, out)
    return hashlib.sha256(out.numpy().tobytes()).hexdigest()


@pytest.mark.parametrize(
    "processor",
    [
        {"ATEN_CPU_CAPABILITY": "default"},
        {"MKL_CBWR": "COMPATIBLE"},
        {"ATEN_CPU_CAPABILITY": "avx2", "MKL_CBWR": "AVX2"},
    ],
)
@pytest.mark.slow
def test_replicas_on_different_processors_restore_the_same_bytes(processor: dict[str, str]) -> None:
    """torch and MKL are set to behave as on another processor; their own QR and product then differ."""
    command = [sys.executable, "-c", "from tests.compress.test_factors import restored; print(restored())"]
    done = subprocess.run(
        command, env={**os.environ, **processor}, capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.strip() == restored()
