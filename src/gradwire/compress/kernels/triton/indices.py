"""Indices: packs increasing indices, whose count is on the device, into a frame, as native/kernels/indices.cpp does.

1. `measure`: bits of the Rice codes of each block of indices
2. `lay_out` (one program): where each block's bits begin; Rice codes or a bitmap, whichever is shorter; where the
   values begin; and the frame's header, but for its checksum, which the host adds
3. `write`: ors codes or bits into the frame, which was cleared before
"""

import triton
import triton.language as tl

from gradwire.compress.kernels.triton.compact import WIDTH
from gradwire.compress.kernels.triton.state import BITMAP, COUNT, NONFINITE, RICE, VALUES


@triton.jit
def rice_bits(count, n):
    """The number of low bits of a code: while 2^b * count / n < 0.481, one more pays."""
    bits = 0 * count
    for b in range(31):
        bits += (((count.to(tl.int64) << b) * 1000) < (n.to(tl.int64) * 481)).to(tl.int32)
    return bits


@triton.jit
def gaps(indices, at, inside):
    index = tl.load(indices + at, mask=inside, other=0)
    before = tl.load(indices + at - 1, mask=inside & (at > 0), other=-1)
    return index, index - before - 1


@triton.jit(do_not_specialize=["n"])
def measure(indices, lengths, state, n, BLOCK: tl.constexpr):
    count = tl.load(state + COUNT)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    b = rice_bits(count, n)
    _, gap = gaps(indices, at, inside)
    tl.store(lengths + tl.program_id(0), tl.sum(tl.where(inside, (gap >> b) + b + 1, 0).to(tl.int64)))


@triton.jit(do_not_specialize=["n"])
def lay_out(
    lengths, frame, state, blocks, n, kind, values_kind, HEADER: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr
):
    """`frame` are int32 words. A value has BITS bits, and each BLOCK of them a scale (0: none)."""
    total = tl.zeros((), tl.int64)
    for first in range(0, blocks, WIDTH):
        at = first + tl.arange(0, WIDTH)
        here = tl.load(lengths + at, mask=at < blocks, other=0)
        tl.store(lengths + at, total + tl.cumsum(here) - here, mask=at < blocks)
        total += tl.sum(here)
    count = tl.load(state + COUNT)
    rice, bitmap = (total + 7) // 8, (n.to(tl.int64) + 7) // 8
    trivial = (count <= 0) | (count >= n)
    packed = tl.where(trivial, 0, 1 + tl.minimum(rice, bitmap)).to(tl.int32)
    values = (packed + 7) // 8 * 8
    body = values + (count * BITS + 7) // 8
    if BLOCK > 0:
        body += 4 * ((count + BLOCK - 1) // BLOCK)
    tl.store(state + BITMAP, (rice > bitmap).to(tl.int32))
    tl.store(state + RICE, rice_bits(count, n))
    tl.store(state + VALUES, HEADER + values)
    tl.store(frame, kind)
    tl.store(frame + 1, values_kind)
    tl.store(frame + 2, n)
    tl.store(frame + 3, count)
    tl.store(frame + 4, packed)
    tl.store(frame + 5, body)
    tl.store(frame + 6, tl.load(state + NONFINITE))


@triton.jit(do_not_specialize=["n"])
def write(indices, lengths, frame, state, n, HEADER: tl.constexpr, BLOCK: tl.constexpr):
    """The first byte after the header names the form: 0 Rice codes, 1 a bitmap."""
    count = tl.load(state + COUNT)
    count = tl.where(count < n, count, 0)  # all of them need no bytes
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    index, gap = gaps(indices, at, inside)
    words = frame + HEADER // 4
    if tl.load(state + BITMAP) != 0:
        place = index.to(tl.int64) + 8
        tl.atomic_or(words + (place >> 5), 1 << (place & 31).to(tl.int32), mask=inside, sem="relaxed")
        tl.atomic_or(words, 1, mask=(tl.program_id(0) == 0) & (count > 0), sem="relaxed")
    else:
        b = tl.load(state + RICE)
        length = tl.where(inside, (gap >> b) + b + 1, 0).to(tl.int64)
        place = 8 + tl.load(lengths + tl.program_id(0)) + tl.cumsum(length) - length + (gap >> b).to(tl.int64)
        low = (tl.full((), 1, tl.int64) << b.to(tl.int64)) - 1
        code = ((((gap.to(tl.int64) & low) << 1) | 1) << (place & 31)).to(tl.uint64)
        first, second = code.to(tl.uint32).to(tl.int32, bitcast=True), (code >> 32).to(tl.uint32)
        second = second.to(tl.int32, bitcast=True)
        tl.atomic_or(words + (place >> 5), first, mask=inside, sem="relaxed")
        tl.atomic_or(words + (place >> 5) + 1, second, mask=inside & (second != 0), sem="relaxed")
