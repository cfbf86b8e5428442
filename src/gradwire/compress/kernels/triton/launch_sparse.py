"""Launch of a sparse encoding: gradient and residual in, a whole frame out, but for its checksum.

Seven to twelve kernels in a row on one stream; the host knows no count until it has the frame.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from gradwire.compress.kernels.base import SparseForm
from gradwire.compress.kernels.triton.compact import count_selected, move_selected, place_blocks
from gradwire.compress.kernels.triton.indices import lay_out, measure, write
from gradwire.compress.kernels.triton.largest import BINS, SHIFTS, count_keys, narrow
from gradwire.compress.kernels.triton.launch import BLOCKS, ELEMENTS, residual_of, run
from gradwire.compress.kernels.triton.sparse import (
    add_sparse_floats,
    add_sparse_quantised,
    write_floats,
    write_quantised,
)
from gradwire.compress.kernels.triton.state import WORDS

# Programs that count keys: each adds its 2,048 bins once, so there are few, but enough for every processor of a GPU.
COUNTING: Final = 512
# Indices, or values in floating point, of a program.
PAIRS: Final = 1024
_KINDS: Final = {"fp32": 0, "fp16": 1, "bf16": 2}
_BITS: Final = {"int8": 8, "int4": 4, "int2": 2}


def scratch_bytes(n: int, capacity: int) -> int:
    """Device memory that an encoding needs beside the frame; it may have any content."""
    return sum(nbytes for nbytes, _ in _layout(n, capacity))


def encode_sparse(
    g: Tensor, r: Tensor | None, frame: Tensor, form: SparseForm, scratch: Tensor, seed: int | None, kept: int = 0
) -> None:
    """1. the limit that the wanted elements reach, 2. their pairs, 3. indices and header, 4. values. The header's last
    word but one has the number of elements that are not finite. A residual in bfloat16 is rounded with the seed
    `kept`."""
    n = g.numel()
    histogram, state, above, equal, lengths, indices, values = _parts(n, form.capacity, scratch)
    frame.zero_()
    histogram.zero_()
    state.zero_()
    feedback, residual = r is not None, residual_of(g, r)
    _find_limit(g, r, form, histogram, state)  # 1
    blocks = -(-n // ELEMENTS)  # 2
    run(count_selected, blocks, g, residual, above, equal, state, n, FEEDBACK=feedback, BLOCK=ELEMENTS)
    run(place_blocks, 1, above, equal, state, blocks, form.capacity)
    run(
        move_selected, blocks, g, residual, above, equal, indices, values, state, n, form.capacity, kept,
        FEEDBACK=feedback, BLOCK=ELEMENTS,
    )  # fmt: skip
    groups, words, bits = -(-form.capacity // PAIRS), frame.view(torch.int32), _BITS.get(form.values, 0)  # 3
    run(measure, groups, indices, lengths, state, n, BLOCK=PAIRS)
    run(
        lay_out, 1, lengths, words, state, groups, n, *form.kinds, HEADER=form.header,
        BITS=bits or (32 if form.values == "fp32" else 16), BLOCK=BLOCKS.get(bits, 0),
    )  # fmt: skip
    run(write, groups, indices, lengths, words, state, n, HEADER=form.header, BLOCK=PAIRS)
    if bits:  # 4
        rows = ELEMENTS // BLOCKS[bits]
        run(
            write_quantised, -(-form.capacity // ELEMENTS), indices, values, residual, frame, state, seed or 0, kept,
            FEEDBACK=feedback, STOCHASTIC=seed is not None, BITS=bits, BLOCK=BLOCKS[bits], ROWS=rows,
        )  # fmt: skip
    else:
        run(
            write_floats, groups, indices, values, residual, frame, state, kept,
            FEEDBACK=feedback, KIND=_KINDS[form.values], BLOCK=PAIRS,
        )  # fmt: skip


def add_sparse(indices: Tensor, body: Tensor, out: Tensor, weight: float, values: str) -> None:
    """out[indices] += weight * the values in `body` (bytes)."""
    count = indices.numel()
    if bits := _BITS.get(values, 0):
        run(
            add_sparse_quantised, -(-count // ELEMENTS), indices, body, out, count, weight,
            BITS=bits, BLOCK=BLOCKS[bits], ROWS=ELEMENTS // BLOCKS[bits],
        )  # fmt: skip
    else:
        run(
            add_sparse_floats, -(-count // PAIRS), indices, body, out, count, weight,
            KIND=_KINDS[values], BLOCK=PAIRS,
        )  # fmt: skip


def _find_limit(g: Tensor, r: Tensor | None, form: SparseForm, histogram: Tensor, state: Tensor) -> None:
    n, finite = g.numel(), form.selecting == "sampled"
    strata, step = _sample(n, form.wanted) if finite else (0, 0)
    read = strata * 16 or n
    blocks = -(-read // ELEMENTS)
    each = -(-blocks // COUNTING)
    # Where all elements are wanted, all that are not zero are sent: the limit is the smallest of the keys.
    wanted = n if form.wanted >= n else form.wanted
    for shift in SHIFTS:
        run(
            count_keys, -(-blocks // max(each, 1)),
            g, residual_of(g, r), histogram, state, read, strata, step, each,
            FEEDBACK=r is not None, SAMPLED=strata > 0, SHIFT=shift, FIRST=shift == SHIFTS[0], BLOCK=ELEMENTS,
        )  # fmt: skip
        run(
            narrow, 1, histogram, state, n, wanted,
            SHIFT=shift, FIRST=shift == SHIFTS[0], FINITE=finite, SKIP_ZEROS=form.selecting != "exact",
        )  # fmt: skip


def _sample(n: int, k: int) -> tuple[int, int]:
    """Strata of the sample and their width, as in native/kernels/threshold.cpp; none: everything is read."""
    size = max(64 * 1024, n * 1200 // k)
    if size > n // 4:
        return 0, 0
    strata = size // 16
    return strata, (n // 16 << 20) // strata


def _layout(n: int, capacity: int) -> list[tuple[int, torch.dtype]]:
    blocks, groups = -(-n // ELEMENTS), -(-capacity // PAIRS)
    words = [BINS.value, WORDS, blocks, blocks]
    sizes = [(4 * word, torch.int32) for word in words] + [(8 * groups, torch.int64)]
    sizes += [(4 * capacity, torch.int32), (4 * capacity, torch.float32)]
    return [(-(-nbytes // 8) * 8, dtype) for nbytes, dtype in sizes]


def _parts(n: int, capacity: int, scratch: Tensor) -> list[Tensor]:
    found, at = [], 0
    for nbytes, dtype in _layout(n, capacity):
        found.append(scratch[at : at + nbytes].view(dtype))
        at += nbytes
    return found
