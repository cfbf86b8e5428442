"""Decode: frames of W ranks, weighted and added in rank order in registers: one write per element, whatever W.

Bytes of memory per element: W * BITS / 8 and W * 4 / BLOCK read, 4 written.
"""

import triton
import triton.language as tl

from gradwire.compress.kernels.triton.numbers import from_half, unpacked


@triton.jit
def add_quantised(
    frames, out, n, stride, count, weight,
    ADD: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """out = (or +=) the sum over `count` frame bodies of weight * (whole * scale); bodies are `stride` bytes apart."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at = rows[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    blocks = (n + BLOCK - 1) // BLOCK
    total = tl.full((ROWS, BLOCK), -0.0, tl.float32)  # adding to -0 changes nothing
    if ADD:
        total = tl.load(out + at, mask=at < n, other=0.0)
    body = frames
    for _ in tl.range(count, loop_unroll_factor=4):  # several loads in flight
        scales = body.to(tl.pointer_type(tl.float32), bitcast=True)
        scale = tl.load(scales + rows, mask=rows < blocks, other=0.0)
        value = weight * (unpacked(body + 4 * blocks, at, at < n, BITS) * scale[:, None])
        total = total + value
        body += stride
    tl.store(out + at, total, mask=at < n)


@triton.jit
def add_halves(
    frames, out, n, stride, count, weight, ADD: tl.constexpr, BFLOAT: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """As `add_quantised`, for 16-bit words."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    total = tl.full((BLOCK,), -0.0, tl.float32)
    if ADD:
        total = tl.load(out + at, mask=inside, other=0.0)
    body = frames
    for _ in tl.range(count, loop_unroll_factor=4):  # several loads in flight
        halves = body.to(tl.pointer_type(tl.int16), bitcast=True)
        half = tl.load(halves + at, mask=inside, other=0).to(tl.int32) & 0xFFFF
        value = weight * from_half(half, BFLOAT)
        total = total + value
        body += stride
    tl.store(out + at, total, mask=inside)
