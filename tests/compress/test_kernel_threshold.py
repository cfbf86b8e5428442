"""The sampled threshold selects the requested share within 10 %, and threads never change what is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from gradwire.compress import kernels
from gradwire.compress.kernels import native, reference

N = 2_000_003


def gaussian(generator: torch.Generator) -> Tensor:
    return torch.randn(N, generator=generator)


def laplace(generator: torch.Generator) -> Tensor:
    return torch.empty(N).exponential_(generator=generator) * torch.randn(N, generator=generator).sign()


def heavy_tails(generator: torch.Generator) -> Tensor:
    return torch.empty(N).cauchy_(generator=generator)


def layers(generator: torch.Generator) -> Tensor:
    """Ten layers, each ten times smaller than the one before in scale, of very different sizes."""
    parts = [torch.randn(size, generator=generator) for size in (9, 9001, 64, 500_000, 90_000, 300_000, 30_000)]
    parts.append(torch.randn(N - sum(part.numel() for part in parts), generator=generator))
    return torch.cat([part * 10.0 ** -(i % 5) for i, part in enumerate(parts)])


def rows(generator: torch.Generator) -> Tensor:
    """A convolution's weight gradient: whole rows of 512 are large or small together."""
    scale = torch.randn(N // 512 + 1, generator=generator).exp().repeat_interleave(512)[:N]
    return torch.randn(N, generator=generator) * scale


@pytest.mark.slow
@pytest.mark.parametrize("ratio", [0.1, 0.01, 0.001])
@pytest.mark.parametrize("make", [gaussian, laplace, heavy_tails, layers, rows])
def test_the_threshold_selects_what_was_asked_within_ten_percent(
    make: Callable[[torch.Generator], Tensor], ratio: float
) -> None:
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        g, r = make(generator), torch.zeros(N)
        k = int(N * ratio)
        taken = int((g.abs() >= kernels.threshold(g, r, k)).sum())
        assert taken == pytest.approx(k, rel=0.1)


@pytest.mark.parametrize("n", [1, 2, 100, 10_000, 70_000, 400_001])
@pytest.mark.parametrize("k", [1, 5, 1000, 100_000])
@pytest.mark.parametrize("feedback", [True, False])
def test_the_native_threshold_is_the_reference_one(n: int, k: int, feedback: bool) -> None:
    generator = torch.Generator().manual_seed(n + k)
    g = torch.randn(n, generator=generator)
    r = torch.randn(n, generator=generator) if feedback else None
    g[n // 2] = float("nan")
    g[n // 3] = float("inf")
    assert native.threshold(g, r, k) == reference.threshold(g, r, k)


@pytest.mark.parametrize("n", [0, 1, 5000, 500_000])
def test_zeros_select_nothing(n: int) -> None:
    zeros = torch.zeros(n)
    least = kernels.threshold(zeros, None, max(1, n // 100))
    assert least > 0
    indices = torch.empty(n, dtype=torch.int32)
    assert kernels.select(zeros, None, least, indices, torch.empty(n)).count == 0


def test_a_gradient_of_few_values_selects_just_those() -> None:
    g = torch.zeros(100_000)
    g[::1000] = torch.arange(1.0, 101.0)
    indices = torch.empty(5000, dtype=torch.int32)
    found = kernels.select(g, None, kernels.threshold(g, None, 1000), indices, torch.empty(5000))
    assert found.count == 100


@pytest.mark.parametrize("capacity", [500_000, 9500, 6000, 17, 0])
def test_threads_change_nothing_in_a_selection(capacity: int) -> None:
    generator = torch.Generator().manual_seed(1)
    n = 1_600_000  # enough for three threads
    g, start = torch.randn(n, generator=generator), torch.randn(n, generator=generator)
    g[[3, n // 2, n - 1]] = float("nan")

    def run(threads: int) -> tuple[Any, ...]:
        r = start.clone()
        indices, values = torch.empty(capacity, dtype=torch.int32), torch.empty(capacity)
        found = kernels.select(g, r, 3.9, indices, values, threads=threads)
        return found, indices[: found.count].tolist(), values[: found.count].view(torch.int32).tolist(), r

    one = run(1)
    for threads in (2, 3):
        other = run(threads)
        assert one[:3] == other[:3]
        assert torch.equal(one[3], other[3])


def test_threads_change_nothing_in_dense_encodings() -> None:
    generator = torch.Generator().manual_seed(2)
    n = 1_100_001  # enough for two threads
    g, start = torch.randn(n, generator=generator), torch.randn(n, generator=generator)

    def run(threads: int) -> list[Tensor]:
        r, half, wide = start.clone(), torch.empty(n, dtype=torch.float16), torch.ones(n)
        q8, s8 = torch.empty(n, dtype=torch.int8), torch.empty(-(-n // 256))
        q4, s4 = torch.empty((n + 1) // 2, dtype=torch.uint8), torch.empty(-(-n // 64))
        q2, s2 = torch.empty((n + 3) // 4, dtype=torch.uint8), torch.empty(-(-n // 64))
        kernels.encode_half(g, r, half, threads=threads)
        kernels.encode_int8(g, r, q8, s8, 5, threads=threads)
        kernels.encode_int4(g, r, q4, s4, 6, threads=threads)
        kernels.encode_int2(g, r, q2, s2, 7, threads=threads)
        kernels.decode_half(half, wide, 0.5, True, threads=threads)
        kernels.decode_int8(q8, s8, wide, 0.3, True, threads=threads)
        kernels.decode_int4(q4, s4, wide, 0.1, True, threads=threads)
        kernels.decode_int2(q2, s2, wide, 0.1, True, threads=threads)
        kernels.accumulate(g, r, threads=threads)
        return [r, half, q8, s8, q4, s4, q2, s2, wide]

    for one, other in zip(run(1), run(2), strict=True):
        assert torch.equal(one, other)
