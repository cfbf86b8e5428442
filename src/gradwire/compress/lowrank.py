"""Low rank: a matrix M is sent as two thin factors, M ~ P Q^T (PowerSGD, one warm-started power iteration a step).

    1. M += residual                     what earlier steps left out
    2. P = M Q            -> sum         Q is last step's, so the subspace is tracked over time
    3. P = orthonormal(P)
    4. Q = M^T P          -> sum
    5. M^ = P Q^T                        the same M^ on every rank
    6. residual = M - P Q^T              with the rank's own Q: the mean of the residuals is that of M - M^
    7. Q = orthonormal(Q)                for the next step's P, which spans the same and survives rounding

Every rank computes steps 3 and 5 from the same sums and must get the same bytes on different processors. A
linear-algebra library orders its operations by the processor's vector width, so gradwire has its own kernels for both
(compress/kernels/factors.py). Steps 2 and 4 are each rank's own contribution and may use any library.

Factors may be sent in a value format (lowrank:16+int8). What rounding changes in Q stays in the residual like all that
the product does not carry; a rounded P spans a slightly other subspace. Step 7 keeps that slight: with Q itself, P
would have the squares of the sizes of the gradient's directions, which leave half precision's range, mixed with larger
ones, so that rounding would leave noise of those below a tenth of the largest. Columns of a factor differ in
size, so factors are flat by columns: values that share a scale are of one column or of neighbours, and never of two
parameters, of which one may have a thousandth of the other's gradient.

Vectors (biases, norms) are sent uncompressed, together with P. So are matrices that would not shrink, but in the
factors' value format: what rounding changes in them stays in the residual.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from gradwire.compress.kernels import INT2_BLOCK, INT4_BLOCK, INT8_BLOCK
from gradwire.compress.kernels.factors import multiply_factors, orthonormalise
from gradwire.level import Level, bits
from gradwire.types import ParameterSlice

Spans = tuple[tuple[int, int], ...]
# Elements that share a scale, by value format.
BLOCKS = {"int8": INT8_BLOCK, "int4": INT4_BLOCK, "int2": INT2_BLOCK}
# Directions that are smaller than this share of the largest are noise of float32.
RIDGE = 1e-6


@dataclass(frozen=True, slots=True)
class MatrixSlice:
    """One parameter as a matrix of rows x columns, at its offset in the bucket, approximated with `rank`."""

    name: str
    offset: int
    rows: int
    columns: int
    rank: int

    @property
    def numel(self) -> int:
        return self.rows * self.columns


@dataclass(frozen=True, slots=True)
class FactorLayout:
    """How a bucket splits into matrices to factorise, spans (start, numel) to send in the factors' value format, and
    spans to send uncompressed. Factors and rounded spans begin at multiples of `block`: its values share a scale."""

    matrices: tuple[MatrixSlice, ...]
    rounded: Spans
    whole: Spans
    block: int = 1

    def aligned(self, numel: int) -> int:
        return -(-numel // self.block) * self.block

    @property
    def left_numel(self) -> int:
        """Elements of all P and of the rounded spans, which travel with them."""
        return sum(self.aligned(m.rows * m.rank) for m in self.matrices) + self.rounded_numel

    @property
    def rounded_numel(self) -> int:
        return sum(self.aligned(numel) for _, numel in self.rounded)

    @property
    def right_numel(self) -> int:
        """Elements of all Q."""
        return sum(self.aligned(m.columns * m.rank) for m in self.matrices)

    @property
    def whole_numel(self) -> int:
        """Elements of the uncompressed spans."""
        return sum(numel for _, numel in self.whole)


class LowRank:
    """Factorises the matrices of a bucket; keeps each Q for the next step's warm start."""

    def __init__(self, level: Level, seed: int = 0) -> None:
        self.level = level
        self._seed = seed
        self._right: dict[str, Tensor] = {}

    def layout(self, slices: Sequence[ParameterSlice]) -> FactorLayout:
        matrices: list[MatrixSlice] = []
        rounded: list[tuple[int, int]] = []
        whole: list[tuple[int, int]] = []
        for part in slices:
            rows = part.shape[0] if len(part.shape) > 1 else 1
            columns = part.numel // max(rows, 1)
            rank = min(self.level.rank, rows, columns)
            if (rows + columns) * rank < part.numel:
                matrices.append(MatrixSlice(part.name, part.offset, rows, columns, rank))
            elif rows > 1 and self.level.values != "fp32":
                rounded.append((part.offset, part.numel))
            else:
                whole.append((part.offset, part.numel))
        return FactorLayout(tuple(matrices), tuple(rounded), tuple(whole), BLOCKS.get(self.level.values, 1))

    def nbytes(self, layout: FactorLayout) -> int:
        """Bytes of the factors and the uncompressed spans, about."""
        return bits(self.level.values) * (layout.left_numel + layout.right_numel) // 8 + 4 * layout.whole_numel

    def left(self, waiting: Tensor, layout: FactorLayout) -> Tensor:
        """Step 2: every P = M Q and the rounded spans, in one flat tensor."""
        parts = [(_matrix(waiting, m) @ self._warm(m, waiting)).T.flatten() for m in layout.matrices]
        return joined([*parts, spans_of(waiting, layout.rounded, layout.block)], waiting, layout.block)

    def bases(self, layout: FactorLayout, left: Tensor) -> list[Tensor]:
        """Step 3: an orthonormal basis of the columns of each summed P."""
        found, place = [], 0
        for m in layout.matrices:
            p = left[place : place + m.rows * m.rank].view(m.rank, m.rows).T.contiguous()
            place += layout.aligned(p.numel())
            orthonormalise(p)
            found.append(p)
        return found

    def right(self, waiting: Tensor, layout: FactorLayout, bases: Sequence[Tensor]) -> Tensor:
        """Step 4: every Q = M^T P, in one flat tensor."""
        parts = [(p.T @ _matrix(waiting, m)).flatten() for m, p in zip(layout.matrices, bases, strict=True)]
        return joined(parts, waiting, layout.block)

    def restore(self, layout: FactorLayout, bases: Sequence[Tensor], right: Tensor, out: Tensor) -> None:
        """Step 5: out = P Q^T. Step 7: a basis of each averaged Q is kept for the next step."""
        place = 0
        for m, p in zip(layout.matrices, bases, strict=True):
            q = right[place : place + m.columns * m.rank].view(m.rank, m.columns)
            place += layout.aligned(q.numel())
            multiply_factors(p, q, _matrix(out, m))
            self._right[m.name] = basis_of(q.T)  # 7

    def subtract(self, layout: FactorLayout, bases: Sequence[Tensor], right: Tensor, out: Tensor) -> None:
        """out -= P Q^T."""
        place = 0
        for m, p in zip(layout.matrices, bases, strict=True):
            q = right[place : place + m.columns * m.rank].view(m.rank, m.columns)
            place += layout.aligned(q.numel())
            _matrix(out, m).addmm_(p, q, alpha=-1)

    def state_dict(self) -> dict[str, Tensor]:
        return dict(self._right)

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self._right = dict(state)

    def _warm(self, m: MatrixSlice, like: Tensor) -> Tensor:
        known = self._right.get(m.name)
        if known is None or known.shape != (m.columns, m.rank):
            # The first Q is seeded by the parameter's name, so that all ranks draw the same one in any order.
            seed = self._seed ^ (sum(ord(c) * 31**i for i, c in enumerate(m.name)) & 0x7FFFFFFF)
            generator = torch.Generator().manual_seed(seed)
            known = torch.randn(m.columns, m.rank, generator=generator, dtype=torch.float32)
        return known.to(like)  # a loaded one may be on another device


def joined(parts: Iterable[Tensor], like: Tensor, block: int) -> Tensor:
    """One flat tensor of flat parts, each filled up with zeros to whole blocks."""
    return torch.cat([like[:0], *(pad(part, (0, -part.numel() % block)) for part in parts)])


def spans_of(flat: Tensor, spans: Spans, block: int = 1) -> Tensor:
    """The spans of a flat tensor, each filled up to whole blocks."""
    return joined((flat[start : start + numel] for start, numel in spans), flat, block)


def put_spans(values: Tensor | None, spans: Spans, out: Tensor, block: int = 1) -> None:
    """Put what `spans_of` has taken, or zeros, into another flat tensor."""
    place = 0
    for start, numel in spans:
        out[start : start + numel] = 0.0 if values is None else values[place : place + numel]
        place += numel + -numel % block


def basis_of(matrix: Tensor) -> Tensor:
    """Orthonormal columns that span the same as the matrix's, by the Cholesky factor of its Gram matrix, which costs a
    hundredth of `orthonormalise`. Columns below RIDGE of the largest come out shorter; zeros stay. Ranks on different
    processors may get other last digits: what the basis is multiplied with is each rank's own contribution."""
    largest = float(matrix.abs().max())
    if largest == 0:
        return matrix.contiguous()
    wide = matrix.double() / largest
    gram = wide.T @ wide
    gram.diagonal().add_(RIDGE**2 * float(gram.diagonal().max()))
    factor = torch.linalg.cholesky(gram)
    basis: Tensor = torch.linalg.solve_triangular(factor.T, wide, upper=True, left=False)
    return basis.to(matrix.dtype).contiguous()


def _matrix(flat: Tensor, m: MatrixSlice) -> Tensor:
    return flat[m.offset : m.offset + m.numel].view(m.rows, m.columns)
