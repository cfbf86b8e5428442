"""Triton's kernels, interpreted, write the bits that the native kernels write."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor

from gradwire.compress import kernels
from gradwire.compress.base import ChunkSpan
from gradwire.compress.frame import HEADER, counts
from gradwire.compress.residual import KEPT, opened, stored_as
from gradwire.compress.topk import TopK
from gradwire.level import Level
from tests.compress.interpreted import launch, launch_sparse

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

BITS = {8: (kernels.encode_int8, kernels.decode_int8), 4: (kernels.encode_int4, kernels.decode_int4)}
BITS[2] = (kernels.encode_int2, kernels.decode_int2)
SEED = KEPT ^ 99  # of the rounding of residuals in bfloat16
NAN, INF = float("nan"), float("inf")


def same_bits(one: Tensor, other: Tensor) -> bool:
    """With every NaN as one: its payload is the processor's choice."""
    if one.dtype != torch.float32:
        return torch.equal(one.view(torch.uint8), other.view(torch.uint8))
    one, other = (torch.where(torch.isnan(tensor), torch.nan, tensor).view(torch.int32) for tensor in (one, other))
    return torch.equal(one, other)


def drawn(n: int, scale: float = 1.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A gradient with awkward elements, and a residual, which is always finite."""
    generator = torch.Generator().manual_seed(n + seed)
    g, r = torch.randn(n, generator=generator) * scale, torch.randn(n, generator=generator) * scale / 3
    r.nan_to_num_(0.0, 0.0, 0.0)
    if n > 300:
        g[:5] = torch.tensor([-0.0, 1e-45, -1e-40, 65519.9, -7e4])
        r[0] = -0.0
        g[280:290] = torch.tensor([NAN, INF, -INF, *[3.3e38] * 7])
    return g, r


def encoded(n: int, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    """Memory for a frame's body: all of it, its scales, its whole numbers."""
    cut = 4 * -(-n // launch.BLOCKS[bits])
    body = torch.full((cut + -(-n * bits // 8),), 0x55, dtype=torch.uint8)
    return body, body[:cut].view(torch.float32), body[cut:]


@pytest.mark.parametrize("seed", [None, 12345])
@pytest.mark.parametrize("bits", [8, 4, 2])
@pytest.mark.parametrize(("n", "scale"), [(1, 1.0), (64, 0.0), (259, 1e-42), (2049, 1.0), (700, 1e38)])
def test_blocks_are_quantised_as_the_native_kernels_quantise(n: int, scale: float, bits: int, seed: int | None) -> None:
    for kept in (torch.float32, torch.bfloat16, None):
        g, r = drawn(n, scale)
        (_, scales, q), (_, want_scales, want_q) = encoded(n, bits), encoded(n, bits)
        mine, want = (None, None) if kept is None else (stored_as(r, kept, 1), stored_as(r, kept, 1))
        nonfinite = torch.zeros(1, dtype=torch.int32)
        with nullcontext(None) if want is None else opened(want, SEED) as wide:
            expected = BITS[bits][0](g, wide, want_q.view(torch.int8) if bits == 8 else want_q, want_scales, seed=seed)
        launch.encode_quantised(g, mine, q, scales, nonfinite, seed, bits, SEED)
        assert same_bits(scales, want_scales)
        assert same_bits(q, want_q)
        assert int(nonfinite) == expected
        if mine is not None and want is not None:
            assert same_bits(mine, want)


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("bits", [8, 4, 2])
def test_frames_of_all_ranks_are_added_in_rank_order(bits: int, add: bool) -> None:
    n, ranks, weight = 2051, 3, 1 / 3
    length = len(encoded(n, bits)[0])
    bodies = torch.zeros(ranks, length + -length % 8, dtype=torch.uint8)
    out = torch.linspace(-1, 1, n)
    want = out.clone()
    cut = length - -(-n * bits // 8)
    for rank, body in enumerate(bodies[:, :length]):
        q = body[cut:].view(torch.int8) if bits == 8 else body[cut:]
        BITS[bits][0](drawn(n, seed=rank)[0], None, q, body[:cut].view(torch.float32), seed=rank)
        BITS[bits][1](q, body[:cut].view(torch.float32), want, weight, add or rank > 0)
    launch.decode_quantised(bodies, out, weight, add, bits)
    assert same_bits(out, want)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kept", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("n", "scale"), [(1, 1.0), (2049, 1.0), (700, 1e-7), (700, 1e-42), (700, 1e38)])
def test_halves_are_rounded_as_the_native_kernels_round(
    dtype: torch.dtype, kept: torch.dtype, n: int, scale: float
) -> None:
    g, r = drawn(n, scale)
    mine, want = stored_as(r, kept, 1), stored_as(r, kept, 1)
    half, want_half = torch.empty(n, dtype=dtype), torch.empty(n, dtype=dtype)
    nonfinite = torch.zeros(1, dtype=torch.int32)
    with opened(want, SEED) as wide:
        expected = kernels.encode_half(g, wide, want_half)
    launch.encode_half(g, mine, half, nonfinite, SEED)
    assert int(nonfinite) == expected
    assert same_bits(half, want_half)
    assert same_bits(mine, want)
    out, want_out = torch.ones(n), torch.ones(n)
    kernels.decode_half(half, want_out, 0.3, True)
    launch.decode_half(half.view(torch.uint8)[None], out, 0.3, True, dtype == torch.bfloat16)
    assert same_bits(out, want_out)


def test_every_half_is_decoded_and_encoded_again() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
        wide, back = torch.empty(2**16), torch.empty_like(every)
        launch.decode_half(every.view(torch.uint8)[None], wide, 1.0, False, dtype == torch.bfloat16)
        assert same_bits(wide, every.float())
        launch.encode_half(wide, None, back, torch.zeros(1, dtype=torch.int32))
        assert bool((torch.isnan(every) | (back.view(torch.int16) == every.view(torch.int16))).all())


def sparse_frames(level: str, g: Tensor, r: Tensor | None, seed: int | None) -> tuple[Tensor, Tensor, int, int]:
    """The frame by the native codec and by the kernels, and how many elements each found not finite."""
    codec, n = TopK(Level.parse(level)), g.numel()
    want, mine = (torch.zeros(codec.size_of(n), dtype=torch.uint8) for _ in range(2))
    left = None if r is None else r.clone()
    with nullcontext(None) if left is None else opened(left, SEED) as wide:
        found = codec.encode(g, wide, want, ChunkSpan(0, 0, 0, n), seed)
    form = codec.form(n)
    scratch = torch.full((launch_sparse.scratch_bytes(n, form.capacity),), 0x7F, dtype=torch.uint8)
    launch_sparse.encode_sparse(g, r, mine, form, scratch, seed, SEED)
    if r is not None and left is not None:
        assert same_bits(r, left), "the residuals differ"
    return want, mine, found.nonfinite, int(mine[24:28].view(torch.int32))


@pytest.mark.parametrize("kind", ["plain", "wild", "ties", "zeros"])
@pytest.mark.parametrize("kept", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "level", ["topk:0.01+int8", "topk:0.2+int4", "exactk:0.03+fp16", "topk:0.05", "topk:0.3+int2", "topk:0.04+bf16"]
)
def test_a_sparse_frame_is_that_of_the_native_codec(level: str, kept: torch.dtype, kind: str) -> None:
    for n in (1, 2051):
        g, r = drawn(n)
        g = {"plain": g.nan_to_num(0.0), "wild": g, "ties": (2 * g.nan_to_num(0.0)).round(), "zeros": 0 * r}[kind]
        residual = None if kind == "plain" else stored_as(r if kind == "wild" else torch.zeros(n), kept, 1)
        want, mine, expected, nonfinite = sparse_frames(level, g, residual, seed=None if kind == "ties" else 7)
        body = int(want[20:24].view(torch.int32))
        assert torch.equal(mine[:24], want[:24])
        assert torch.equal(mine[HEADER : HEADER + body], want[HEADER : HEADER + body])
        assert nonfinite == expected


def test_a_threshold_of_a_sample_is_the_native_kernels() -> None:
    g = torch.randn(270_000, generator=torch.Generator().manual_seed(1)) * torch.linspace(0.1, 3, 270_000)
    want, mine, *_ = sparse_frames("topk:0.1+int8", g, torch.zeros_like(g), seed=3)
    assert torch.equal(mine[32:], want[32:])
    assert counts(mine)[0] > 20_000


@pytest.mark.parametrize("values", ["fp32", "bf16", "int8", "int4"])
def test_sparse_values_are_added_where_they_belong(values: str) -> None:
    level, n = Level.parse("topk:0.1" + (f"+{values}" if values != "fp32" else "")), 3001
    codec, span = TopK(level), ChunkSpan(0, 0, 0, n)
    frame = torch.zeros(codec.size_of(n), dtype=torch.uint8)
    codec.encode(drawn(n)[0], None, frame, span, 1)
    out, want = torch.linspace(-1, 1, n), torch.linspace(-1, 1, n)
    codec.decode(frame, want, span, 0.25, add=True)
    count, packed = counts(frame)
    indices = torch.empty(count, dtype=torch.int32)
    kernels.unpack_indices(frame[HEADER : HEADER + packed], count, n, indices)
    launch_sparse.add_sparse(indices, frame[HEADER + -(-packed // 8) * 8 :], out, 0.25, values)
    assert same_bits(out, want)
