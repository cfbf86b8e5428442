"""Largest: the key of the k-th largest magnitude, found by histograms of 11, 11 and 9 bits of the keys.

1. `count_keys` adds a histogram of those elements whose higher bits are known to be the limit's
2. `narrow` (one program) finds the bin with the element of the wanted rank, adds its bits to the limit, and keeps the
   rank that is left within the bin; then the histogram is cleared for the next bits

With all elements the result is exact. With `strata`, only one line of 16 elements from a hashed place in each stratum
is counted, as in native/kernels/threshold.cpp, and the rank is scaled to the finite ones among them.
Bytes of memory per element and pass: gradient 4, residual 4.
"""

import triton
import triton.language as tl

from gradwire.compress.kernels.triton.numbers import INFINITY, SMALLEST, compensated, key_of
from gradwire.compress.kernels.triton.state import EQUAL, LIMIT

BINS = tl.constexpr(2048)
# The lowest bit of each pass, and the passes' lengths.
SHIFTS = (20, 9, 0)
INFINITE_BIN = tl.constexpr(0x7F8)  # of keys that are not finite, in the first pass


@triton.jit
def sampled_place(i, strata, step):
    """The index of the sample's i-th element."""
    s = i // 16
    begin, end = (s.to(tl.int64) * step) >> 20, ((s + 1).to(tl.int64) * step) >> 20
    x = s.to(tl.uint32)
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    line = begin + (((x ^ (x >> 16)).to(tl.int64) * (end - begin)) >> 32)
    return line * 16 + i % 16


@triton.jit
def count_keys(
    g, r, histogram, state, n, strata, step, each,
    FEEDBACK: tl.constexpr, SAMPLED: tl.constexpr, SHIFT: tl.constexpr, FIRST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Each program counts `each` blocks of elements; `n` is their number, or that of the sample."""
    counts = tl.zeros((BINS,), tl.int32)
    limit = tl.load(state + LIMIT)
    begin = tl.program_id(0) * each
    for block in range(begin, begin + each):
        i = block * BLOCK + tl.arange(0, BLOCK)
        inside = i < n
        if SAMPLED:
            at = sampled_place(i, strata, step)
        else:
            at = i
        key = key_of(compensated(g, r, at, inside, FEEDBACK))
        if not FIRST:
            inside = inside & ((key >> (20 if SHIFT == 9 else 9)) == (limit >> (20 if SHIFT == 9 else 9)))
        counts += tl.histogram((key >> SHIFT) & (BINS - 1 if SHIFT else 511), BINS, mask=inside)
    bins = tl.arange(0, BINS)
    tl.atomic_add(histogram + bins, counts, mask=counts > 0, sem="relaxed")


@triton.jit(do_not_specialize=["n", "k"])
def narrow(
    histogram, state, n, k, SHIFT: tl.constexpr, FIRST: tl.constexpr, FINITE: tl.constexpr, SKIP_ZEROS: tl.constexpr
):
    """`k` is the wanted rank among n elements. FINITE: it is scaled to the number of finite ones in the sample, and all
    that reach the limit may be selected. SKIP_ZEROS: the limit is at least the smallest normal float."""
    bins = tl.arange(0, BINS)
    counts = tl.load(histogram + bins)
    tl.store(histogram + bins, tl.zeros((BINS,), tl.int32))
    rank = tl.load(state + EQUAL).to(tl.int64)
    if FIRST:
        rank = k.to(tl.int64)
        if FINITE:
            counts = tl.where(bins < INFINITE_BIN, counts, 0)
            finite = tl.sum(counts).to(tl.int64)
            rank = tl.minimum(tl.maximum((rank * finite + n // 2) // n, 1), finite)
    reached = tl.sum(counts) - tl.cumsum(counts) + counts  # elements in this bin or a higher one
    found = tl.max(tl.where(reached >= rank, bins, 0))
    left = (rank - tl.sum(tl.where(bins > found, counts, 0))).to(tl.int32)
    limit = found << SHIFT
    if not FIRST:
        limit = limit | tl.load(state + LIMIT)
    if SHIFT == 0:
        if FINITE:
            limit = tl.where(limit >= INFINITY, SMALLEST, limit)  # nothing in the sample is finite
            left = tl.full((), 0x7FFFFFFF, tl.int32)
        if SKIP_ZEROS:
            left = tl.where(limit < SMALLEST, 0x7FFFFFFF, left)
            limit = tl.maximum(limit, SMALLEST)
    tl.store(state + LIMIT, limit)
    tl.store(state + EQUAL, left)
