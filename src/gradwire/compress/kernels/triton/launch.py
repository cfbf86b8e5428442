"""Launch: queues the kernels on the current stream of the calling thread. Nothing here waits for the device.

Arguments are tensors of one device (or, interpreted, of host memory); counts stay on the device.
"""

from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import Any, Final

import torch
import triton
from torch import Tensor

from gradwire.compress.kernels.base import INT2_BLOCK, INT4_BLOCK, INT8_BLOCK
from gradwire.compress.kernels.triton.decode import add_halves, add_quantised
from gradwire.compress.kernels.triton.half import halve
from gradwire.compress.kernels.triton.quantise import quantise

INTERPRETED: Final = not isinstance(quantise, triton.runtime.JITFunction)
# The interpreter replaces parts of triton while it runs a kernel: one at a time.
_ONE: Final = threading.Lock() if INTERPRETED else nullcontext()
# A product and a sum must round as they do on the CPU, each by itself.
OPTIONS: Final = {"enable_fp_fusion": False}
BLOCKS: Final = {8: INT8_BLOCK, 4: INT4_BLOCK, 2: INT2_BLOCK}
# Elements of a program: 16 for each of its 128 threads. Chosen by registers (docs/results/gpu-kernels.md), not timed.
ELEMENTS: Final = 2048


def run(kernel: Any, programs: int, *arguments: Any, **constants: Any) -> None:
    """Queue a kernel; nothing where there is nothing to do."""
    if programs > 0:
        with _ONE:
            kernel[(programs,)](*arguments, **constants, **({} if INTERPRETED else OPTIONS))


def residual_of(g: Tensor, r: Tensor | None) -> Tensor:
    """What kernels take for a residual: bfloat16 as its bits; anything where there is none."""
    if r is None:
        return g
    return r.view(torch.int16) if r.dtype == torch.bfloat16 else r


def encode_quantised(
    g: Tensor, r: Tensor | None, q: Tensor, scales: Tensor, nonfinite: Tensor, seed: int | None, bits: int,
    kept: int = 0,
) -> None:  # fmt: skip
    """As `kernels.encode_int8` and its kind; `q` are bytes, `nonfinite` (int32) is added to. A residual in bfloat16 is
    rounded with the seed `kept`."""
    block = BLOCKS[bits]
    rows = ELEMENTS // block
    run(
        quantise, -(-scales.numel() // rows), g, residual_of(g, r), q, scales, nonfinite, g.numel(), seed or 0, kept,
        FEEDBACK=r is not None, STOCHASTIC=seed is not None, BITS=bits, BLOCK=block, ROWS=rows,
    )  # fmt: skip


def encode_half(g: Tensor, r: Tensor | None, out: Tensor, nonfinite: Tensor, kept: int = 0) -> None:
    """As `kernels.encode_half`; `kept` as above."""
    run(
        halve, -(-g.numel() // ELEMENTS), g, residual_of(g, r), out.view(torch.int16), nonfinite, g.numel(), kept,
        FEEDBACK=r is not None, BFLOAT=out.dtype == torch.bfloat16, BLOCK=ELEMENTS,
    )  # fmt: skip


def decode_quantised(bodies: Tensor, out: Tensor, weight: float, add: bool, bits: int) -> None:
    """out = (or +=) the sum over rows of `bodies` (uint8: scales, then whole numbers) of weight * value."""
    block = BLOCKS[bits]
    rows = ELEMENTS // block
    run(
        add_quantised, -(-out.numel() // ELEMENTS), bodies, out, out.numel(), bodies.stride(0), len(bodies), weight,
        ADD=add, BITS=bits, BLOCK=block, ROWS=rows,
    )  # fmt: skip


def decode_half(bodies: Tensor, out: Tensor, weight: float, add: bool, bfloat: bool) -> None:
    """As `decode_quantised`, for rows of 16-bit words."""
    run(
        add_halves, -(-out.numel() // ELEMENTS), bodies, out, out.numel(), bodies.stride(0), len(bodies), weight,
        ADD=add, BFLOAT=bfloat, BLOCK=ELEMENTS,
    )  # fmt: skip
