"""Low rank: a matrix M is sent as two thin factors, M ~ P Q^T (PowerSGD, one warm-started power iteration a step).

    1. M += residual                     what earlier steps left out
    2. P = M Q            -> sum         Q is last step's, so the subspace is tracked over time
    3. P = orthonormal(P)
    4. Q = M^T P          -> sum
    5. M^ = P Q^T, residual = M - M^     the same M^ on every rank

Every rank computes steps 3 and 5 from the same sums and must get the same bytes on different processors. A
linear-algebra library orders its operations by the processor's vector width, so gradwire has its own kernels for both
(compress/kernels/factors.py). Steps 2 and 4 are each rank's own contribution and may use any library.

Vectors (biases, norms) and matrices that would not shrink are sent uncompressed, together with P.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.compress.kernels.factors import multiply_factors, orthonormalise
from gradwire.level import Level
from gradwire.types import ParameterSlice


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
    """How a bucket splits into matrices to factorise and spans (start, numel) to send uncompressed."""

    matrices: tuple[MatrixSlice, ...]
    whole: tuple[tuple[int, int], ...]

    @property
    def left_numel(self) -> int:
        """Elements of the first all-reduce: all P, then the uncompressed spans."""
        return sum(m.rows * m.rank for m in self.matrices) + sum(numel for _, numel in self.whole)

    @property
    def right_numel(self) -> int:
        """Elements of the second all-reduce: all Q."""
        return sum(m.columns * m.rank for m in self.matrices)

    @property
    def nbytes(self) -> int:
        """Bytes of the factors and the uncompressed spans."""
        return 4 * (self.left_numel + self.right_numel)


class LowRank:
    """Factorises the matrices of a bucket; keeps each Q for the next step's warm start."""

    def __init__(self, level: Level, seed: int = 0) -> None:
        self.level = level
        self._seed = seed
        self._right: dict[str, Tensor] = {}

    def layout(self, slices: Sequence[ParameterSlice]) -> FactorLayout:
        matrices: list[MatrixSlice] = []
        whole: list[tuple[int, int]] = []
        for part in slices:
            rows = part.shape[0] if len(part.shape) > 1 else 1
            columns = part.numel // max(rows, 1)
            rank = min(self.level.rank, rows, columns)
            if (rows + columns) * rank < part.numel:
                matrices.append(MatrixSlice(part.name, part.offset, rows, columns, rank))
            else:
                whole.append((part.offset, part.numel))
        return FactorLayout(tuple(matrices), tuple(whole))

    def size_of(self, slices: Sequence[ParameterSlice]) -> int:
        """Bytes of both all-reduces' inputs."""
        return self.layout(slices).nbytes

    def left(self, waiting: Tensor, layout: FactorLayout) -> Tensor:
        """Step 2: every P = M Q, and the uncompressed spans, in one flat tensor."""
        parts = [(_matrix(waiting, m) @ self._warm(m, waiting)).flatten() for m in layout.matrices]
        parts += [waiting[start : start + numel] for start, numel in layout.whole]
        return torch.cat(parts) if parts else waiting.new_empty(0)

    def right(self, waiting: Tensor, layout: FactorLayout, left: Tensor) -> Tensor:
        """Steps 3 and 4: orthonormalise each summed P in place, return every Q = M^T P in one flat tensor."""
        parts: list[Tensor] = []
        for m, p in self._lefts(layout, left):
            orthonormalise(p)
            parts.append((_matrix(waiting, m).T @ p).flatten())
        return torch.cat(parts) if parts else waiting.new_empty(0)

    def restore(self, layout: FactorLayout, left: Tensor, right: Tensor, out: Tensor) -> None:
        """Step 5: out = P Q^T and the uncompressed spans; each averaged Q is kept for the next step."""
        place = 0
        for m, p in self._lefts(layout, left):
            q = right[place : place + m.columns * m.rank].view(m.columns, m.rank)
            place += q.numel()
            multiply_factors(p, q.T.contiguous(), _matrix(out, m))
            self._right[m.name] = q.clone()
        place = sum(m.rows * m.rank for m in layout.matrices)
        for start, numel in layout.whole:
            out[start : start + numel] = left[place : place + numel]
            place += numel

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

    @staticmethod
    def _lefts(layout: FactorLayout, left: Tensor) -> list[tuple[MatrixSlice, Tensor]]:
        place, found = 0, []
        for m in layout.matrices:
            found.append((m, left[place : place + m.rows * m.rank].view(m.rows, m.rank)))
            place += m.rows * m.rank
        return found


def _matrix(flat: Tensor, m: MatrixSlice) -> Tensor:
    return flat[m.offset : m.offset + m.numel].view(m.rows, m.columns)
