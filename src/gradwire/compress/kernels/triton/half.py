"""Half: fp16 and bf16 with error feedback in one pass, as in native/kernels/half.h.

Bytes of memory per element: gradient 4, residual 4 + 4 (2 + 2 as bfloat16), half 2.
"""

import triton
import triton.language as tl

from gradwire.compress.kernels.triton.numbers import INFINITY, compensated, from_half, keep, magnitude, to_half


@triton.jit(do_not_specialize=["kept"])
def halve(g, r, out, nonfinite, n, kept, FEEDBACK: tl.constexpr, BFLOAT: tl.constexpr, BLOCK: tl.constexpr):
    """Round a to `out` (16-bit words); r = a - out, except where a is not finite, which is counted."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    a = compensated(g, r, at, inside, FEEDBACK)
    half = to_half(a, BFLOAT)
    tl.store(out + at, half.to(tl.int16), mask=inside)
    wild = magnitude(a) >= INFINITY
    if FEEDBACK:
        rest = a - from_half(half, BFLOAT)
        keep(r, at, rest, inside & ~wild, kept)
    wrong = tl.sum((wild & inside).to(tl.int32))
    tl.atomic_add(nonfinite, wrong, mask=wrong > 0, sem="relaxed")
