"""Quantise: int8, int4 and int2 with one scale per block and error feedback in one pass, as in native/kernels/quant.h.

Bytes of memory per element: gradient 4, residual 4 + 4 (2 + 2 as bfloat16), whole number BITS / 8, scale 4 / BLOCK.
"""

import triton
import triton.language as tl

from gradwire.compress.kernels.triton.numbers import (
    INFINITY,
    NAN,
    block_scale,
    compensated,
    keep,
    magnitude,
    packed,
    whole_numbers,
)


@triton.jit(do_not_specialize=["seed", "kept"])
def quantise(
    g, r, q, scales, nonfinite, n, seed, kept,
    FEEDBACK: tl.constexpr, STOCHASTIC: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Each program encodes ROWS blocks: whole numbers to the bytes q, one scale each; r = a - whole * scale.

    A block with anything not finite gets scale NaN and zeros, and keeps its residual; `nonfinite` counts its elements.
    """
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    lanes = tl.arange(0, BLOCK)
    at = rows[:, None] * BLOCK + lanes[None, :]
    inside = at < n
    a = compensated(g, r, at, inside, FEEDBACK)
    scale, bad = block_scale(a, BITS)
    whole = whole_numbers(a, scale, seed, rows, lanes, STOCHASTIC, BITS, BLOCK)
    if FEEDBACK:
        rest = a - whole * scale[:, None]
        keep(r, at, rest, inside & (~bad)[:, None], kept)
    wrong = tl.sum(((magnitude(a) >= INFINITY) & inside).to(tl.int32))
    tl.atomic_add(nonfinite, wrong, mask=wrong > 0, sem="relaxed")
    nan = tl.full(scale.shape, NAN, tl.int32).to(tl.float32, bitcast=True)
    tl.store(scales + rows, tl.where(bad, nan, scale), mask=rows * BLOCK < n)
    each: tl.constexpr = 8 // BITS
    place = rows[:, None] * (BLOCK // each) + tl.arange(0, BLOCK // each)[None, :]
    data = packed(tl.where(bad[:, None], 0.0, whole), ROWS, BITS, BLOCK)
    tl.store(q + place, data, mask=place < (n + each - 1) // each)
