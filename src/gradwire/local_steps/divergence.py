"""Divergence: how differently the ranks moved since the last outer step.

In: each rank's pseudo-gradient. Out: their norms, and their alignment, the mean cosine between two ranks (weighted by
norms): 1 if all ranks moved the same way, 0 if their ways are unrelated.

A rank sends a count sketch of its pseudo-gradient, SIZE numbers: element i is added to number i modulo SIZE with a
random sign, the same on all ranks. Inner products of sketches are those of the vectors, with an error of about
1 / sqrt(SIZE) of their norms. The sum S of all sketches s_r is enough, because |S|^2 has every pair's inner product:

    alignment = (|S|^2 - sum |s_r|^2) / ((W - 1) sum |s_r|^2)

It does not depend on the level, reads the pseudo-gradient once, and runs beside the exchange, so it adds no round trip.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.errors import LinkError
from gradwire.transport.lanes.collectives import explain

# Two kilobytes a round; one pair's alignment is then known to about 0.04.
SIZE: Final = 512


@dataclass(frozen=True, slots=True)
class Divergence:
    """Norms of this rank's pseudo-gradient and of a typical rank's (root mean square); `alignment` is None where there
    is nothing to compare: one rank, or no rank moved. `ranks` took part, where that is not all of them for certain."""

    own_norm: float
    norm: float
    alignment: float | None
    ranks: tuple[int, ...] = ()


class DivergenceMeter:
    """`begin`, then `finish`, on all ranks at the same points."""

    def __init__(self, group: dist.ProcessGroup, timeout: float) -> None:
        self._group = group
        self._timeout = timedelta(seconds=timeout)
        self._signs: dict[int, Tensor] = {}
        self._sums = torch.zeros(SIZE + 2)
        self._own_square = torch.zeros(())
        self._work: dist.Work | None = None

    def begin(self, gradients: Sequence[tuple[int, Tensor]]) -> None:
        """`gradients` are (index, pseudo-gradient) of each bucket; the exchange may overwrite them afterwards."""
        self.measure(gradients)
        if self._group.size() > 1:
            self._work = dist.all_reduce(self._sums, group=self._group, async_op=True)

    def measure(self, gradients: Sequence[tuple[int, Tensor]]) -> None:
        """What this rank sends."""
        sketch = self._sketch(*gradients[0])
        for index, one in gradients[1:]:
            sketch += self._sketch(index, one).to(sketch.device)
        norms = [torch.linalg.vector_norm(one).float().to(sketch.device) for _, one in gradients]
        self._own_square = torch.stack(norms).square().sum()
        self._sums = torch.cat([sketch, sketch.square().sum().view(1), self._own_square.view(1)])

    def finish(self) -> Divergence:
        work, self._work = self._work, None
        try:
            if work is not None:
                work.wait(self._timeout)
        except RuntimeError as error:
            raise LinkError(explain(error, "AllReduce")) from error
        return divergence(self._sums.cpu(), float(self._own_square), self._group.size())

    def _sketch(self, index: int, gradient: Tensor) -> Tensor:
        """Row r of the pseudo-gradient, in rows of SIZE elements, has sign r; the last row may be shorter."""
        signs, rows = self._signs_of(index, gradient), gradient.numel() // SIZE
        found = (signs[:rows] @ gradient[: rows * SIZE].view(rows, SIZE)).float()
        rest = gradient[rows * SIZE :]
        found[: rest.numel()] += signs[rows].float() * rest.float()
        return found

    def _signs_of(self, index: int, gradient: Tensor) -> Tensor:
        known = self._signs.get(index)
        if known is None:
            generator = torch.Generator().manual_seed(index)
            bits = torch.randint(0, 2, (gradient.numel() // SIZE + 1,), generator=generator)
            known = self._signs[index] = (2 * bits - 1).to(gradient.device, gradient.dtype)
        return known


def divergence(sums: Tensor, own_square: float, world_size: int, ranks: tuple[int, ...] = ()) -> Divergence:
    """From the sum over ranks of (sketch, squared norm of the sketch, squared norm)."""
    whole = float(sums[:SIZE].double().square().sum())
    squares, square = float(sums[SIZE]), float(sums[SIZE + 1])
    alignment = None
    if world_size > 1 and squares > 0 and math.isfinite(whole):
        alignment = max(-1.0, min(1.0, (whole - squares) / ((world_size - 1) * squares)))
    return Divergence(_root(own_square), _root(square / world_size), alignment, ranks)


def _root(square: float) -> float:
    """NaN for NaN and infinity, which a diverged model has."""
    return math.sqrt(square) if math.isfinite(square) else math.nan
