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
    lanes = tl.arange(0, BLOCK)
    at = rows[:, None] * BLOCK + lanes[None, :]
    each: tl.constexpr = 8 // BITS
    blocks = (n + BLOCK - 1) // BLOCK
    place = rows[:, None] * (BLOCK // each) + tl.arange(0, BLOCK // each)[None, :]
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    if ADD:
        total = tl.load(out + at, mask=at < n, other=0.0)
    body = frames
    for rank in range(count):
        scales = body.to(tl.pointer_type(tl.float32), bitcast=True)
        scale = tl.load(scales + rows, mask=rows < blocks, other=0.0)
        data = tl.load(body + 4 * blocks + place, mask=place < (n + each - 1) // each, other=0)
        value = weight * (unpacked(data, ROWS, BITS, BLOCK) * scale[:, None])
        if ADD:
            total = total + value
        else:
            total = tl.where(rank == 0, value, total + value)
        body += stride
    tl.store(out + at, total, mask=at < n)


@triton.jit
def add_halves(
    frames, out, n, stride, count, weight, ADD: tl.constexpr, BFLOAT: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """As `add_quantised`, for 16-bit words."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    total = tl.zeros((BLOCK,), tl.float32)
    if ADD:
        total = tl.load(out + at, mask=inside, other=0.0)
    body = frames
    for rank in range(count):
        halves = body.to(tl.pointer_type(tl.int16), bitcast=True)
        half = tl.load(halves + at, mask=inside, other=0).to(tl.int32) & 0xFFFF
        value = weight * from_half(half, BFLOAT)
        if ADD:
            total = total + value
        else:
            total = tl.where(rank == 0, value, total + value)
        body += stride
    tl.store(out + at, total, mask=inside)
