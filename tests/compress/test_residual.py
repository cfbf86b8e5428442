"""Residuals in half the memory: rounded without bias, so that what was sent and what waits add up to the gradient."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from gradwire import _native
from gradwire.compress import kernels
from gradwire.compress.base import ChunkSpan
from gradwire.compress.build import build_codec
from gradwire.compress.kernels import native, reference
from gradwire.compress.residual import KEPT, ResidualSpan, opened, stored_as
from gradwire.level import Level

NUMEL = 40_000


@pytest.fixture(params=["scalar", "avx2", "avx512"])
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    before = _native.isa()
    if _native.set_isa(request.param) != request.param:
        _native.set_isa(before)
        pytest.skip(f"this machine has no {request.param}")
    yield request.param
    _native.set_isa(before)


def drawn(numel: int, seed: int = 0) -> Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed))


def rounded(values: Tensor, seed: int) -> Tensor:
    out = torch.empty(values.numel(), dtype=torch.bfloat16)
    kernels.round_to_bfloat(values, out, seed)
    return out


@pytest.mark.parametrize("numel", [0, 1, 7, 8, 17, 255, 256, 257, 1000])
def test_native_rounding_is_that_of_the_reference(isa: str, numel: int) -> None:
    values = drawn(numel) * 10.0 ** torch.linspace(-44, 38, numel)
    if numel > 200:
        wild = [0.0, -0.0, 1e-45, -1e-45, 3.4e38, -3.4e38, float("nan"), float("inf"), float("-inf")]
        values[100 : 100 + len(wild)] = torch.tensor(wild)
    for seed in (0, 12345, 2**40 + 7):
        want, got = (torch.empty(numel, dtype=torch.bfloat16) for _ in range(2))
        reference.round_to_bfloat(values, want, seed)
        native.round_to_bfloat(values, got, seed)
        assert torch.equal(want.view(torch.int16), got.view(torch.int16))


def test_a_value_goes_to_a_neighbour_and_its_mean_is_the_value() -> None:
    values = torch.tensor([1.0 + 1 / 1024, -3.0 - 1 / 1000, 1e-3, 7e20]).repeat(NUMEL // 4)
    found = rounded(values, 1).float()
    spacing = 2.0 ** (torch.frexp(values).exponent - 8).float()
    assert bool(((found - values).abs() < spacing).all())
    for kind in range(4):
        share = (found[kind::4].double() - values[kind::4].double()) / spacing[kind]
        assert abs(share.mean()) < 5 * 0.5 / (NUMEL / 4) ** 0.5


def test_what_bfloat16_can_hold_is_not_changed() -> None:
    every = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    every = every[every.isfinite()]
    assert torch.equal(rounded(every.float(), 3).view(torch.int16), every.view(torch.int16))


def test_the_largest_values_saturate() -> None:
    most = torch.finfo(torch.float32).max
    found = rounded(torch.tensor([most, -most] * 100), 0)
    assert found.isfinite().all()


def test_an_error_leaves_the_residual_as_it_was() -> None:
    stored = stored_as(drawn(100), torch.bfloat16, 0)
    before = stored.clone()
    with pytest.raises(RuntimeError), opened(stored, 1) as wide:
        wide.zero_().view(3, 7)
    assert torch.equal(stored, before)


def test_small_gradients_are_not_lost_beside_a_large_residual() -> None:
    """Where they are rounded to the nearest they are: a residual of 1 would stay 1 for ever."""
    steps, small = 400, 1 / 1024
    stored, nearest = torch.ones(NUMEL, dtype=torch.bfloat16), torch.ones(1, dtype=torch.bfloat16)
    for step in range(steps):
        with opened(stored, step) as residual:
            residual.add_(small)
        nearest = (nearest.float() + small).bfloat16()
    assert float(nearest) == 1.0
    exact = 1.0 + steps * small
    drift = stored.double() - exact
    allowed = steps**0.5 * 2.0**-7 / 2  # of one element: u / 2 a step, u = 2^-7 between 1 and 2
    assert float(drift.std()) < allowed
    assert abs(float(drift.mean())) < 5 * allowed / NUMEL**0.5


@pytest.mark.parametrize("level", ["fp16", "int8", "int4", "int2", "topk:0.1", "topk:0.01+int8", "randk:0.05"])
def test_sent_and_waiting_drift_from_the_gradient_by_no_more_than_is_stated(level: str) -> None:
    """A standard deviation of half the distance of two numbers for each step, 2^-8 of the residual or less."""
    codec, stored = build_codec(Level.parse(level)), torch.zeros(NUMEL, dtype=torch.bfloat16)
    frame = torch.zeros(codec.size_of(NUMEL), dtype=torch.uint8)
    given, sent, variance = (torch.zeros(NUMEL, dtype=torch.float64) for _ in range(3))
    one = torch.empty(NUMEL)
    for step in range(60):
        gradient, span = drawn(NUMEL, seed=step) + 0.2, ChunkSpan(step, 0, 0, NUMEL)
        given += gradient.double()
        with ResidualSpan(stored, step ^ KEPT).opened() as residual:
            codec.encode(gradient, residual, frame, span, seed=step)
            variance += (residual.double() * 2.0**-8) ** 2
        codec.decode(frame, one, span)
        sent += one.double()
    drift = given - sent - stored.double()
    assert float(drift.square().mean()) < 1.05 * float(variance.mean())
    assert abs(float(drift.mean())) < 5 * float(variance.mean() / NUMEL) ** 0.5
    # The same with float32: only additions are rounded.
    assert float(drift.abs().max()) > 0
