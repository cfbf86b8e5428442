"""Compact: moves what reaches the limit to (indices, values), in index order; the rest stays in the residual.

1. `count_selected`: per block, how many elements are above the limit and how many are equal to it
2. `place_blocks` (one program): where each block's pairs begin, how many of its equal elements are selected, the count
3. `move_selected`: writes the pairs and the residual

Bytes of memory per element: 1 reads 8 (gradient and residual), 3 reads 8 and writes 4, and 8 per pair.
"""

import triton
import triton.language as tl

from gradwire.compress.kernels.triton.numbers import INFINITY, compensated, keep, key_of
from gradwire.compress.kernels.triton.state import COUNT, EQUAL, LIMIT, NONFINITE, SENT_NONFINITE

WIDTH = tl.constexpr(1024)  # blocks that one round of `place_blocks` takes


@triton.jit
def count_selected(g, r, above, equal, state, n, FEEDBACK: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    limit = tl.load(state + LIMIT)
    key = key_of(compensated(g, r, at, inside, FEEDBACK))
    tl.store(above + tl.program_id(0), tl.sum((inside & (key > limit)).to(tl.int32)))
    tl.store(equal + tl.program_id(0), tl.sum((inside & (key == limit)).to(tl.int32)))
    wild = tl.sum((inside & (key >= INFINITY)).to(tl.int32))
    tl.atomic_add(state + NONFINITE, wild, mask=wild > 0, sem="relaxed")


@triton.jit
def place_blocks(above, equal, state, blocks, capacity):
    """`above` becomes where each block's pairs begin, `equal` how many equal elements it selects."""
    begin = tl.zeros((), tl.int64)
    left = tl.load(state + EQUAL).to(tl.int64)
    for first in range(0, blocks, WIDTH):
        at = first + tl.arange(0, WIDTH)
        inside = at < blocks
        more = tl.load(above + at, mask=inside, other=0).to(tl.int64)
        same = tl.load(equal + at, mask=inside, other=0).to(tl.int64)
        before = tl.cumsum(same) - same
        taken = tl.minimum(tl.maximum(left - before, 0), same)
        here = more + taken
        start = begin + tl.cumsum(here) - here
        tl.store(equal + at, taken.to(tl.int32), mask=inside)
        tl.store(above + at, start.to(tl.int32), mask=inside)
        begin += tl.sum(here)
        left -= tl.sum(same)
    tl.store(state + COUNT, tl.minimum(begin, capacity).to(tl.int32))


@triton.jit(do_not_specialize=["kept"])
def move_selected(
    g, r, above, equal, indices, values, state, n, capacity, kept, FEEDBACK: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    limit = tl.load(state + LIMIT)
    a = compensated(g, r, at, inside, FEEDBACK)
    key = key_of(a)
    same = (inside & (key == limit)).to(tl.int32)
    taken = (inside & (key > limit)) | ((same > 0) & (tl.cumsum(same) <= tl.load(equal + tl.program_id(0))))
    place = tl.load(above + tl.program_id(0)) + tl.cumsum(taken.to(tl.int32)) - 1
    taken = taken & (place < capacity)
    tl.store(indices + place, at, mask=taken)
    tl.store(values + place, a, mask=taken)
    wild = key >= INFINITY
    if FEEDBACK:
        keep(r, at, tl.where(taken, 0.0, a), inside & ~wild, kept)
    sent = tl.sum((taken & wild).to(tl.int32))
    tl.atomic_add(state + SENT_NONFINITE, sent, mask=sent > 0, sem="relaxed")
