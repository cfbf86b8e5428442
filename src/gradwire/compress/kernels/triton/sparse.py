"""Sparse: the values of selected elements, whose count and place in the frame are on the device, and their return.

As `write_values` of compress/topk.py: rounding errors are added to the residual at the elements' indices. Where inputs
were NaN or infinite and none of them was selected, the first value is sent as NaN, so that every rank sees it; finite
values that cannot be read because of that, or of a NaN in their block, stay in the residual.
"""

import triton
import triton.language as tl

from gradwire.compress.kernels.triton.numbers import (
    INFINITY,
    NAN,
    block_scale,
    from_half,
    keep,
    magnitude,
    packed,
    residual_at,
    to_half,
    unpacked,
    whole_numbers,
)
from gradwire.compress.kernels.triton.state import COUNT, NONFINITE, SENT_NONFINITE, VALUES


@triton.jit
def to_send(values, at, inside, state):
    """The selected values, what is sent instead of them (NaN for the first where no rank would see one), and whether
    that differs."""
    value = tl.load(values + at, mask=inside, other=0.0)
    hidden = (tl.load(state + NONFINITE) > 0) & (tl.load(state + SENT_NONFINITE) == 0)
    nan = tl.full(value.shape, NAN, tl.int32).to(tl.float32, bitcast=True)
    return value, tl.where(inside & (at == 0) & hidden, nan, value)


@triton.jit
def keep_error(r, indices, at, error, mask, kept):
    place = tl.load(indices + at, mask=mask, other=0)
    keep(r, place, residual_at(r, place, mask) + error, mask, kept)


@triton.jit(do_not_specialize=["seed", "kept"])
def write_quantised(
    indices, values, r, frame, state, seed, kept,
    FEEDBACK: tl.constexpr, STOCHASTIC: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """`frame` are bytes."""
    count = tl.load(state + COUNT)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    lanes = tl.arange(0, BLOCK)
    at = rows[:, None] * BLOCK + lanes[None, :]
    inside = at < count
    value, sent = to_send(values, at, inside, state)
    scale, bad = block_scale(sent, BITS)
    whole = whole_numbers(sent, scale, seed, rows, lanes, STOCHASTIC, BITS, BLOCK)
    if FEEDBACK:
        error = tl.where(bad[:, None], value, value - whole * scale[:, None])
        keep_error(r, indices, at, error, inside & (magnitude(value) < INFINITY), kept)
    blocks = (count + BLOCK - 1) // BLOCK
    body = frame + tl.load(state + VALUES)
    nan = tl.full(scale.shape, NAN, tl.int32).to(tl.float32, bitcast=True)
    scales = body.to(tl.pointer_type(tl.float32), bitcast=True)
    tl.store(scales + rows, tl.where(bad, nan, scale), mask=rows < blocks)
    each: tl.constexpr = 8 // BITS
    place = rows[:, None] * (BLOCK // each) + tl.arange(0, BLOCK // each)[None, :]
    data = packed(tl.where(bad[:, None], 0.0, whole), ROWS, BITS, BLOCK)
    tl.store(body + 4 * blocks + place, data, mask=place < (count + each - 1) // each)


@triton.jit(do_not_specialize=["kept"])
def write_floats(
    indices, values, r, frame, state, kept, FEEDBACK: tl.constexpr, KIND: tl.constexpr, BLOCK: tl.constexpr
):
    """KIND 0: float32, 1: fp16, 2: bf16. `frame` are bytes."""
    count = tl.load(state + COUNT)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    value, sent = to_send(values, at, inside, state)
    body = frame + tl.load(state + VALUES)
    if KIND == 0:
        tl.store(body.to(tl.pointer_type(tl.float32), bitcast=True) + at, sent, mask=inside)
        carried = sent
    else:
        if FEEDBACK:
            sent = tl.where(sent == 0.0, 0.0, sent)  # an error is added first, which makes -0 of it 0
        half = to_half(sent, KIND == 2)
        tl.store(body.to(tl.pointer_type(tl.int16), bitcast=True) + at, half.to(tl.int16), mask=inside)
        carried = from_half(half, KIND == 2)
    if FEEDBACK:
        error = tl.where(magnitude(carried) >= INFINITY, value, value - carried)
        keep_error(r, indices, at, error, inside & (magnitude(value) < INFINITY), kept)


@triton.jit
def add_sparse_quantised(
    indices, body, out, count, weight, BITS: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr
):
    """out[index] += weight * (whole * scale); the indices of a frame are distinct."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at = rows[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = at < count
    blocks = (count + BLOCK - 1) // BLOCK
    scale = tl.load(body.to(tl.pointer_type(tl.float32), bitcast=True) + rows, mask=rows < blocks, other=0.0)
    value = weight * (unpacked(body + 4 * blocks, at, inside, BITS) * scale[:, None])
    index = tl.load(indices + at, mask=inside, other=0)
    tl.store(out + index, tl.load(out + index, mask=inside, other=0.0) + value, mask=inside)


@triton.jit
def add_sparse_floats(indices, body, out, count, weight, KIND: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    if KIND == 0:
        value = tl.load(body.to(tl.pointer_type(tl.float32), bitcast=True) + at, mask=inside, other=0.0)
    else:
        half = tl.load(body.to(tl.pointer_type(tl.int16), bitcast=True) + at, mask=inside, other=0)
        value = from_half(half.to(tl.int32) & 0xFFFF, KIND == 2)
    index = tl.load(indices + at, mask=inside, other=0)
    tl.store(out + index, tl.load(out + index, mask=inside, other=0.0) + weight * value, mask=inside)
