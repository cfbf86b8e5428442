"""Numbers: bits of floats, noise and rounding, as in native/kernels/floats.h, noise.h and half.cpp."""

# No `from __future__ import annotations` in modules with kernels: triton reads the annotations.
import triton
import triton.language as tl

INFINITY = tl.constexpr(0x7F800000)  # everything not finite is at or above these bits
MAGNITUDE = tl.constexpr(0x7FFFFFFF)
SMALLEST = tl.constexpr(0x00800000)  # the smallest normal float
NAN = tl.constexpr(0x7FC00000)
ROUND = tl.constexpr(12582912.0)  # 1.5 * 2^23: adding it leaves no bits for a fraction


@triton.jit
def magnitude(a):
    """The bits of |a|; they grow with |a|."""
    return a.to(tl.int32, bitcast=True) & MAGNITUDE


@triton.jit
def compensated(g, r, at, inside, FEEDBACK: tl.constexpr):
    """What is to be sent: the gradient plus the residual of earlier steps; zero outside."""
    a = tl.load(g + at, mask=inside, other=0.0).to(tl.float32)
    if FEEDBACK:
        a = a + residual_at(r, at, inside)
    return a


@triton.jit
def residual_at(r, at, inside):
    """float32, or the bits of bfloat16."""
    stored = tl.load(r + at, mask=inside, other=0)
    value = stored  # one return: triton compares the types of all
    if r.dtype.element_ty == tl.int16:
        value = from_half(stored.to(tl.int32) & 0xFFFF, True)
    return value


@triton.jit
def keep(r, at, rest, mask, seed):
    """Store a residual; as bfloat16 it is rounded up or down at random, as in native/kernels/bfloat.h."""
    if r.dtype.element_ty == tl.int16:
        add, flip = noise_keys(seed, at >> 8)
        up = (noise_bits(add, flip, at & 255) >> 16).to(tl.int32)
        bits = rest.to(tl.int32, bitcast=True)
        half = tl.minimum(((bits & MAGNITUDE) + up) >> 16, 0x7F7F) | ((bits >> 16) & 0x8000)
        tl.store(r + at, half.to(tl.int16), mask=mask)
    else:
        tl.store(r + at, rest, mask=mask)


@triton.jit
def noise_keys(seed, run):
    """Two words per run of 256 elements: splitmix64's finaliser."""
    x = seed.to(tl.uint64) + (run.to(tl.uint64) + 1) * 0x9E3779B97F4A7C15
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    x = x ^ (x >> 31)
    return x.to(tl.uint32), (x >> 32).to(tl.uint32)


@triton.jit
def noise_bits(add, flip, lane):
    x = lane.to(tl.uint32) * 0x9E3779B9 + add
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return (x ^ (x >> 16)) ^ flip


@triton.jit
def noise(add, flip, lane):
    """Uniform on the multiples of 2^-24 in [0, 1)."""
    return (noise_bits(add, flip, lane) >> 8).to(tl.int32).to(tl.float32) * 5.9604644775390625e-08


@triton.jit
def nearest(t):
    """To the nearest whole number, ties to even; |t| < 2^22. Zero keeps its sign."""
    return tl.where(t == 0.0, t, (t + ROUND) - ROUND)


@triton.jit
def floor(t):
    """As tl.floor, which compiles to an instruction that takes the smallest numbers for zero."""
    whole = nearest(t)
    return tl.where(whole > t, whole - 1.0, whole)


@triton.jit
def key_of(a):
    """Bits that order by magnitude; NaN and infinity are equal and largest."""
    return tl.minimum(magnitude(a), INFINITY)


@triton.jit
def to_half(a, BFLOAT: tl.constexpr):
    """The 16 bits of a in half precision: to nearest even, finite values saturate."""
    bits = magnitude(a)
    sign = (a.to(tl.int32, bitcast=True) >> 16) & 0x8000
    if BFLOAT:
        finite = tl.minimum((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16, 0x7F7F)
        half = tl.where(bits > INFINITY, 0x7FC0, sign | tl.where(bits == INFINITY, 0x7F80, finite))
    else:
        normal = (bits - 0x38000000 + 0xFFF + ((bits >> 13) & 1)) >> 13
        # Below 2^-14 halves are multiples of 2^-24: adding 0.5 lets the adder round to that grid.
        small = (bits.to(tl.float32, bitcast=True) + 0.5).to(tl.int32, bitcast=True) - 0x3F000000
        finite = tl.where(bits >= 0x477FF000, 0x7BFF, tl.where(bits < 0x38800000, small, normal))
        half = tl.where(bits > INFINITY, 0x7E00, sign | tl.where(bits == INFINITY, 0x7C00, finite))
    return half


@triton.jit
def from_half(half, BFLOAT: tl.constexpr):
    """The float32 value of 16 bits in the low half of an int32."""
    if BFLOAT:
        bits = half << 16
    else:
        sign, rest = (half & 0x8000) << 16, half & 0x7FFF
        small = (rest.to(tl.float32) * 5.9604644775390625e-08).to(tl.int32, bitcast=True)
        wild = tl.where(rest == 0x7C00, INFINITY, NAN | ((rest & 0x3FF) << 13))
        normal = (rest << 13) + 0x38000000
        bits = sign | tl.where(rest >= 0x7C00, wild, tl.where(rest < 0x400, small, normal))
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def block_scale(a, BITS: tl.constexpr):
    """The scale of each row, zero where it would be below the smallest normal float, and whether a row has anything not
    finite. Rows of int2 have a signed scale: the element of largest magnitude is -2 times it."""
    most = tl.max(magnitude(a), axis=1)
    if BITS == 2:
        up, down = tl.max(a, axis=1), tl.max(-a, axis=1)
        scale = tl.where(up >= down, -0.5 * up, 0.5 * down)
    else:
        levels: tl.constexpr = 127.0 if BITS == 8 else 7.0
        # The largest scale whose top level is finite: nextafter of FLT_MAX / levels where that is needed.
        cap: tl.constexpr = 0x7C010203 if BITS == 8 else 0x7E124924
        exact = tl.div_rn(most.to(tl.float32, bitcast=True), tl.full(most.shape, levels, tl.float32))
        scale = tl.minimum(exact.to(tl.int32, bitcast=True), cap).to(tl.float32, bitcast=True)
    scale = tl.where(magnitude(scale) >= SMALLEST, scale, 0.0)
    return scale, most >= INFINITY


@triton.jit
def whole_numbers(a, scale, seed, rows, lanes, STOCHASTIC: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr):
    """a / scale as whole numbers of this width, one row per block."""
    ones = tl.full(scale.shape, 1.0, tl.float32)
    inverse = tl.where(scale != 0.0, tl.div_rn(ones, tl.where(scale != 0.0, scale, 1.0)), 0.0)
    t = a * inverse[:, None]
    if STOCHASTIC:
        add, flip = noise_keys(seed, (rows * BLOCK) >> 8)
        lane = ((rows * BLOCK) & 255)[:, None] + lanes[None, :]
        whole = floor(t)
        # Comparing noise with the exact fraction, not flooring t + noise, which would round up at large t.
        whole = whole + tl.where(noise(add[:, None], flip[:, None], lane) < t - whole, 1.0, 0.0)
    else:
        whole = nearest(t)
    low: tl.constexpr = -127.0 if BITS == 8 else (-7.0 if BITS == 4 else -2.0)
    top: tl.constexpr = 127.0 if BITS == 8 else (7.0 if BITS == 4 else 1.0)
    return tl.minimum(tl.maximum(whole, low), top)


@triton.jit
def packed(whole, ROWS: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr):
    """Whole numbers as bytes: two's complement, the first in the lowest bits."""
    each: tl.constexpr = 8 // BITS
    codes = whole.to(tl.int32) & ((1 << BITS) - 1)
    if BITS < 8:
        shifts = tl.arange(0, each) * BITS
        codes = tl.sum(tl.reshape(codes, (ROWS, BLOCK // each, each)) << shifts[None, None, :], axis=2)
    return codes.to(tl.uint8)


@triton.jit
def unpacked(q, at, inside, BITS: tl.constexpr):
    """The whole numbers of elements `at`, as float32. Each thread loads its element's byte: neighbours share the
    access, and nothing is passed between threads."""
    each: tl.constexpr = 8 // BITS
    half: tl.constexpr = 1 << (BITS - 1)
    code = tl.load(q + at // each, mask=inside, other=0).to(tl.int32)
    if BITS < 8:
        code = (code >> ((at % each) * BITS)) & ((1 << BITS) - 1)
    # The bits of 2^23 + code: conversions of integers take eight times as long as additions.
    shifted = ((code ^ half) | 0x4B000000).to(tl.float32, bitcast=True)
    return shifted - (8388608.0 + half)
