"""Native kernels write what the torch reference writes, bit for bit, on every instruction set and thread count."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from gradwire import _native
from gradwire.compress import kernels
from gradwire.compress.kernels import native, reference

ISAS = ("scalar", "avx2", "avx512")
SIZES = (0, 1, 2, 7, 8, 15, 16, 17, 63, 64, 65, 255, 256, 257, 1000, 4099)
FLT_MAX = torch.finfo(torch.float32).max
EXTREMES = (0.0, -0.0, 1e-45, -1e-40, 1.2e-38, 65504.0, 65519.9, 65520.0, -7e4, 3.3e38, -FLT_MAX, 6e-8, 2.98e-8)
WILD = (float("nan"), float("inf"), float("-inf"))
Outcome = tuple[Any, list[Tensor]]


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    before = _native.isa()
    if _native.set_isa(request.param) != request.param:
        _native.set_isa(before)
        pytest.skip(f"this machine has no {request.param}")
    yield request.param
    _native.set_isa(before)


@st.composite
def gradients(draw: st.DrawFn, finite: bool = False) -> tuple[Tensor, Tensor | None]:
    """A gradient and a residual of awkward size, alignment, scale and content."""
    n = draw(st.sampled_from(SIZES) | st.integers(0, 600))
    offset = draw(st.integers(0, 3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    scale = draw(st.sampled_from([0.0, 1e-42, 1e-3, 1.0, 1e4, 1e38]))
    g = (torch.randn(n + offset, generator=generator) * scale)[offset:]
    if draw(st.booleans()):  # few distinct values: ties
        g.copy_((g * 2 / max(scale, 1e-30)).round() * scale)
    r = (torch.randn(n + offset, generator=generator) * scale / 3)[offset:] if draw(st.booleans()) else None
    specials = EXTREMES if finite else EXTREMES + WILD
    for _ in range(draw(st.integers(0, 4)) if n else 0):
        g[draw(st.integers(0, n - 1))] = draw(st.sampled_from(specials))
    if r is not None:
        r.nan_to_num_(0.0, 0.0, 0.0)  # a residual is always finite
    return g, r


def bits(tensor: Tensor) -> Tensor:
    """Bit patterns, with every float32 NaN as one: which payload an addition keeps is the compiler's choice."""
    if tensor.dtype == torch.float32:
        return torch.where(torch.isnan(tensor), torch.nan, tensor).view(torch.int32)
    return tensor.view(torch.int16) if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def copy(tensor: Tensor | None) -> Tensor | None:
    """A copy with the same alignment, so that unaligned slices stay unaligned."""
    if tensor is None:
        return None
    store = torch.empty(tensor.numel() + tensor.storage_offset(), dtype=tensor.dtype)
    return store[tensor.storage_offset() :].copy_(tensor)


def agree(run: Callable[[Any], Outcome]) -> Outcome:
    want_result, want = run(reference)
    got_result, got = run(native)
    assert got_result == want_result
    for one, other in zip(got, want, strict=True):
        assert torch.equal(bits(one), bits(other))
    return got_result, got


def tensors(*found: Tensor | None) -> list[Tensor]:
    return [tensor for tensor in found if tensor is not None]


relaxed = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@relaxed
@given(pair=gradients(), weight=st.sampled_from([1.0, 0.25, 1 / 3]), add=st.booleans())
def test_halves_agree(
    isa: str, dtype: torch.dtype, pair: tuple[Tensor, Tensor | None], weight: float, add: bool
) -> None:
    def run(kernel: Any) -> Outcome:
        g, r = pair[0], copy(pair[1])
        out = torch.empty(g.numel(), dtype=dtype)
        wide = torch.linspace(-1, 1, g.numel())
        count = kernel.encode_half(g, r, out, 1)
        kernel.decode_half(out, wide, weight, add, 1)
        return count, tensors(out, r, wide)

    agree(run)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_every_half_survives_a_round_trip(isa: str, dtype: torch.dtype) -> None:
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    wide, back = torch.empty(every.numel()), torch.empty_like(every)
    kernels.decode_half(every, wide)
    assert torch.equal(bits(wide), bits(every.float()))
    kernels.encode_half(wide, None, back)
    same = torch.isnan(every) | (bits(back) == bits(every))
    assert bool(same.all())


def test_halves_round_ties_to_even_as_torch_casts_do(isa: str) -> None:
    x = torch.arange(0x3F800000, 0x3F800000 + 2**16, dtype=torch.int32).view(torch.float32)
    for dtype in (torch.float16, torch.bfloat16):
        out = torch.empty(x.numel(), dtype=dtype)
        kernels.encode_half(x, None, out)
        assert torch.equal(bits(out), bits(x.to(dtype)))


def test_a_finite_value_never_becomes_infinite_as_a_half(isa: str) -> None:
    for dtype in (torch.float16, torch.bfloat16):
        out, r = torch.empty(32, dtype=dtype), torch.zeros(32)
        assert kernels.encode_half(torch.full((32,), 3.4e38), r, out) == 0
        assert bool((out == torch.finfo(dtype).max).all())
        assert bool(torch.isfinite(r).all())


@pytest.mark.parametrize("width", [8, 4, 2])
@relaxed
@given(
    pair=gradients(),
    seed=st.none() | st.integers(0, 2**64 - 1),
    weight=st.sampled_from([1.0, 0.25, 1 / 3]),
    add=st.booleans(),
)
def test_integers_agree(
    isa: str, width: int, pair: tuple[Tensor, Tensor | None], seed: int | None, weight: float, add: bool
) -> None:
    def run(kernel: Any) -> Outcome:
        g, r = pair[0], copy(pair[1])
        q, scales = quantised(g.numel(), width)
        wide = torch.linspace(-1, 1, g.numel())
        encode, decode = (getattr(kernel, f"{way}_int{width}") for way in ("encode", "decode"))
        count = encode(g, r, q, scales, seed, 1)
        decode(q, scales, wide, weight, add, 1)
        return count, tensors(q, scales, r, wide)

    agree(run)


def quantised(n: int, width: int) -> tuple[Tensor, Tensor]:
    if width == 8:
        return torch.empty(n, dtype=torch.int8), torch.empty(-(-n // 256))
    each = 8 // width
    return torch.empty((n + each - 1) // each, dtype=torch.uint8), torch.empty(-(-n // 64))


@pytest.mark.parametrize("width", [8, 4, 2])
@pytest.mark.parametrize("seed", [None, 7])
@relaxed
@given(pair=gradients(finite=True))
def test_integers_and_residual_add_up(
    isa: str, width: int, seed: int | None, pair: tuple[Tensor, Tensor | None]
) -> None:
    g = pair[0]
    r = torch.zeros_like(g) if pair[1] is None else copy(pair[1])
    assert r is not None
    a = g + r
    if not torch.isfinite(a).all():
        return
    q, scales = quantised(g.numel(), width)
    getattr(kernels, f"encode_int{width}")(g, r, q, scales, seed)
    sent = torch.empty_like(g)
    getattr(kernels, f"decode_int{width}")(q, scales, sent)
    assert bool(torch.isfinite(sent).all())
    steps = scales.repeat_interleave(256 if width == 8 else 64)[: g.numel()]
    assert torch.equal(a - sent, r)
    assert bool((r.abs() <= steps.abs() * 1.0001 + 1.2e-38 * 127).all())


@pytest.mark.parametrize(("width", "levels"), [(8, 127), (4, 7)])
def test_stochastic_rounding_has_no_bias(isa: str, width: int, levels: int) -> None:
    g = torch.linspace(-1, 1, 256)
    rounds = 4000
    total = torch.zeros(256, dtype=torch.float64)
    q, scales = quantised(256, width)
    sent = torch.empty(256)
    for seed in range(rounds):
        getattr(kernels, f"encode_int{width}")(g, None, q, scales, seed)
        getattr(kernels, f"decode_int{width}")(q, scales, sent)
        total += sent.double()
    step = 1 / levels
    error = (total / rounds - g.double()) / step
    # A rounding's standard deviation is at most half a step; five of the mean's.
    assert float(error.abs().max()) < 5 * 0.5 / rounds**0.5
    assert abs(float(error.mean())) < 5 * 0.5 / (rounds * 256) ** 0.5


def test_two_bits_round_without_bias_where_they_do_not_saturate(isa: str) -> None:
    g = torch.linspace(-1, 2, 64).repeat(4)  # the peak, 2, makes the scale -1
    rounds = 4000
    total = torch.zeros(256, dtype=torch.float64)
    q, scales = quantised(256, 2)
    sent = torch.empty(256)
    for seed in range(rounds):
        kernels.encode_int2(g, None, q, scales, seed)
        kernels.decode_int2(q, scales, sent)
        total += sent.double()
    error = total / rounds - g.double()
    assert float(error.abs().max()) < 5 * 0.5 / rounds**0.5
    assert abs(float(error.mean())) < 5 * 0.5 / (rounds * 256) ** 0.5


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_two_bits_give_the_wide_side_to_the_peak(isa: str, sign: float) -> None:
    g = sign * torch.tensor([4.0, 3.1, 2.9, 0.9, 0.0, -0.9, -1.1, -3.9] + [0.0] * 56)
    q, scales = quantised(64, 2)
    sent = torch.empty(64)
    kernels.encode_int2(g, None, q, scales)
    kernels.decode_int2(q, scales, sent)
    assert scales.tolist() == [-2.0 * sign]
    assert (sent[:8] * sign).tolist() == [4.0, 4.0, 2.0, 0.0, 0.0, 0.0, -2.0, -2.0]


def test_of_two_peaks_the_positive_one_is_sent_whole(isa: str) -> None:
    for order in ([-1.0, 1.0], [1.0, -1.0]):
        q, scales = quantised(64, 2)
        sent = torch.empty(64)
        kernels.encode_int2(torch.tensor(order + [0.0] * 62), None, q, scales)
        kernels.decode_int2(q, scales, sent)
        assert sent[:2].tolist() == [max(x, -0.5) for x in order]


@pytest.mark.parametrize("stochastic", [False, True])
@pytest.mark.parametrize("kind", ["gaussian", "heavy", "one-sided", "negative", "spike", "signs"])
def test_a_residual_of_two_bits_stays_below_the_largest_gradient(isa: str, kind: str, stochastic: bool) -> None:
    """|r| <= peak / 2 after every step, so |r| <= max |g| after any number of steps."""
    generator = torch.Generator().manual_seed(1)
    r, largest, total = torch.zeros(640), torch.zeros(10), torch.zeros(640, dtype=torch.float64)
    received = torch.zeros(640, dtype=torch.float64)
    q, scales = quantised(640, 2)
    sent = torch.empty(640)
    for step in range(300):
        g = steady_gradient(kind, generator)
        largest = torch.maximum(largest, g.view(10, 64).abs().amax(dim=1))
        kernels.encode_int2(g, r, q, scales, step if stochastic else None)
        kernels.decode_int2(q, scales, sent)
        total += g.double()
        received += sent.double()
        assert bool((r.view(10, 64).abs() <= largest[:, None] * 1.0001).all()), step
    # What was not delivered in 300 steps is less than one gradient, in every element.
    assert bool(((total - received).view(10, 64).abs() <= largest[:, None].double() * 1.01).all())


def steady_gradient(kind: str, generator: torch.Generator) -> Tensor:
    """Gradients of one kind: a mean that stays, and noise."""
    noise = torch.randn(640, generator=generator)
    if kind == "heavy":
        return noise**5
    if kind == "spike":
        return noise * 1e-3 + (torch.arange(640) % 64 == 5) * 10.0
    if kind == "signs":
        return torch.where(torch.arange(640) % 2 == 0, 1.0, -1.0)
    shift = {"gaussian": 0.0, "one-sided": 3.0, "negative": -3.0}[kind]
    return noise + shift


def test_noise_is_uniform_and_differs_by_seed_and_index() -> None:
    u = reference.noise(1, 100_000, torch.device("cpu"))
    assert abs(float(u.mean()) - 0.5) < 5 * 0.2887 / 100_000**0.5
    histogram = torch.histc(u, 16, 0, 1)
    assert float((histogram / 6250 - 1).abs().max()) < 0.08
    v = reference.noise(2, 100_000, torch.device("cpu"))
    correlation = float(((u - 0.5) * (v - 0.5)).mean() * 12)
    neighbour = float(((u[1:] - 0.5) * (u[:-1] - 0.5)).mean() * 12)
    assert abs(correlation) < 0.016
    assert abs(neighbour) < 0.016


@pytest.mark.parametrize("width", [8, 4, 2])
def test_a_block_with_a_nan_decodes_to_nan_and_keeps_its_residual(isa: str, width: int) -> None:
    block = 256 if width == 8 else 64
    g, r = torch.randn(3 * block), torch.randn(3 * block)
    g[block + 5], g[block + 9] = float("nan"), float("inf")
    old = r.clone()
    q, scales = quantised(3 * block, width)
    assert getattr(kernels, f"encode_int{width}")(g, r, q, scales) == 2
    out = torch.empty(3 * block)
    getattr(kernels, f"decode_int{width}")(q, scales, out)
    middle = slice(block, 2 * block)
    assert bool(torch.isnan(out[middle]).all())
    assert torch.equal(r[middle], old[middle])
    assert bool(torch.isfinite(out[:block]).all())
    assert bool(torch.isfinite(out[2 * block :]).all())


@relaxed
@given(pair=gradients(), quantile=st.floats(0, 1), space=st.floats(0, 1.2))
def test_select_agrees(isa: str, pair: tuple[Tensor, Tensor | None], quantile: float, space: float) -> None:
    g = pair[0]
    finite = g[torch.isfinite(g)].abs()
    least = float(finite.sort().values[int(quantile * (finite.numel() - 1))]) if finite.numel() else 1.0
    capacity = int(space * g.numel())

    def run(kernel: Any) -> Outcome:
        r = copy(pair[1])
        indices, values = torch.empty(capacity, dtype=torch.int32), torch.empty(capacity)
        found = kernel.select(g, r, least, indices, values, 1)
        return found, tensors(r, indices[: found.count], values[: found.count])

    agree(run)


@relaxed
@given(pair=gradients(), share=st.floats(0, 1))
def test_select_exact_agrees(isa: str, pair: tuple[Tensor, Tensor | None], share: float) -> None:
    k = int(share * pair[0].numel())

    def run(kernel: Any) -> Outcome:
        r = copy(pair[1])
        indices, values = torch.empty(k, dtype=torch.int32), torch.empty(k)
        found = kernel.select_exact(pair[0], r, k, indices, values, 1)
        assert found.count == k
        return found, tensors(r, indices, values)

    agree(run)


@pytest.mark.parametrize("ratio", [0.5, 0.01, 0.0005])
def test_select_exact_agrees_on_a_large_gradient(isa: str, ratio: float) -> None:
    generator = torch.Generator().manual_seed(3)
    g, start = torch.randn(300_000, generator=generator), torch.randn(300_000, generator=generator)
    k = int(ratio * g.numel())

    def run(kernel: Any) -> Outcome:
        r = start.clone()
        indices, values = torch.empty(k, dtype=torch.int32), torch.empty(k)
        return kernel.select_exact(g, r, k, indices, values, 1), [indices, values, r]

    found, _ = agree(run)
    assert found.count == k


@relaxed
@given(pair=gradients(), share=st.floats(0, 1))
def test_select_largest_agrees(isa: str, pair: tuple[Tensor, Tensor | None], share: float) -> None:
    k = int(share * pair[0].numel())

    def run(kernel: Any) -> Outcome:
        r = copy(pair[1])
        indices, values = torch.empty(k, dtype=torch.int32), torch.empty(k)
        found = kernel.select_largest(pair[0], r, k, indices, values, 1)
        return found, tensors(r, indices[: found.count], values[: found.count])

    agree(run)


def rows(generator: torch.Generator) -> Tensor:
    """Large elements next to each other, which a sample of few positions estimates badly."""
    return torch.randn(300, generator=generator).pow(5).repeat_interleave(1000) * torch.randn(300_000)


@pytest.mark.parametrize("kind", ["gaussian", "rows", "few", "equal", "wild", "one end"])
@pytest.mark.parametrize("ratio", [0.1, 0.01, 0.0005])
def test_select_largest_agrees_on_a_large_gradient(isa: str, kind: str, ratio: float) -> None:
    """Whatever the first sample finds: `few` has fewer than requested, `one end` has all large elements together."""
    generator = torch.Generator().manual_seed(5)
    g = rows(generator) if kind == "rows" else torch.randn(300_000, generator=generator)
    start = 0.1 * torch.randn(300_000, generator=generator)
    if kind == "few":
        g[100:], start[100:] = 0.0, 0.0
    if kind == "equal":
        g, start = torch.ones(300_000), torch.zeros(300_000)
    if kind == "one end":
        g[:2000] *= 100.0
    if kind == "wild":
        g[7], g[170_000], start[200_000] = float("nan"), float("inf"), 3e38
        g[200_000] = 3e38
    k = int(ratio * g.numel())

    def run(kernel: Any) -> Outcome:
        r = start.clone()
        indices, values = torch.empty(k, dtype=torch.int32), torch.empty(k)
        found = kernel.select_largest(g, r, k, indices, values, 1)
        return found, [indices[: found.count], values[: found.count], r]

    found, _ = agree(run)
    assert found.count == (min(k, 100) if kind == "few" else k)


@relaxed
@given(pair=gradients(), sorted_places=st.booleans(), data=st.data())
def test_gather_and_accumulate_agree(
    isa: str, pair: tuple[Tensor, Tensor | None], sorted_places: bool, data: st.DataObject
) -> None:
    n = pair[0].numel()
    picked = data.draw(st.lists(st.integers(0, n - 1), max_size=20, unique=True)) if n else []
    places = torch.tensor(sorted(picked) if sorted_places else picked, dtype=torch.int32)

    def run(kernel: Any) -> Outcome:
        r, s = copy(pair[1]), copy(pair[1])
        values = torch.empty(places.numel())
        count = kernel.gather(pair[0], r, places, values, places.numel())
        kept = 0 if s is None else kernel.accumulate(pair[0], s, 1)
        return (count, kept), tensors(values, r, s)

    agree(run)


@relaxed
@given(n=st.sampled_from(SIZES[1:]), weight=st.sampled_from([1.0, 1 / 3]), data=st.data())
def test_scatter_add_agrees_and_checks_bounds(isa: str, n: int, weight: float, data: st.DataObject) -> None:
    picked = data.draw(st.lists(st.integers(0, n - 1), max_size=20, unique=True))
    places = torch.tensor(picked, dtype=torch.int32)
    values = torch.randn(len(picked))

    def run(kernel: Any) -> Outcome:
        out = torch.linspace(-1, 1, n)
        good = kernel.scatter_add(places, values, len(picked), out, weight)
        bad = torch.tensor([0, data.draw(st.sampled_from([-1, n, 2**31 - 1, -(2**31)]))], dtype=torch.int32)
        before = out.clone()
        assert not kernel.scatter_add(bad, torch.ones(2), 2, out, weight)
        assert kernel.gather(out, None, bad, torch.ones(2), 2) == -1
        assert torch.equal(before, out)
        return good, [out]

    agree(run)
