"""Frame layout: offsets of header, counts and body in a frame that goes up a tree.

On a reliable hop: header, body. On a loss tolerant hop the number of contributors per cell stands between them, padded
so that cells begin at multiples of CELL: a loss then removes whole cells only, and everything before them is critical.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.transport.wires.base import RELIABLE, Contract, Delivery
from gradwire.tree.accumulator import CELL, AccumulatorBody
from gradwire.tree.frame_header import SIZE


@dataclass(frozen=True, slots=True)
class FrameLayout:
    """`tolerance` is the fraction of values that one hop must deliver; 1 makes a hop reliable."""

    body: AccumulatorBody
    tolerance: float = 1.0

    @property
    def tolerant(self) -> bool:
        return self.tolerance < 1

    @property
    def start(self) -> int:
        """Offset of the body."""
        if not self.tolerant:
            return SIZE
        before = SIZE + 2 * self.body.cells + self.body.scales
        return -(-before // CELL) * CELL - self.body.scales

    @property
    def nbytes(self) -> int:
        return self.start + self.body.nbytes

    @property
    def contract(self) -> Contract:
        if not self.tolerant:
            return RELIABLE
        must = self.start + self.body.scales
        return Contract(self.tolerance, record=CELL, critical=((0, must),))

    def body_of(self, frame: Tensor) -> Tensor:
        return frame[self.start : self.nbytes]

    def counts_of(self, frame: Tensor) -> Tensor:
        """A view of the counts, one int16 per cell."""
        return frame[SIZE : SIZE + 2 * self.body.cells].view(torch.int16)

    def missing(self, delivery: Delivery) -> list[int]:
        """The cells that did not arrive."""
        first = self.start + self.body.scales
        found: list[int] = []
        for offset, length in delivery.missing:
            found += range((offset - first) // CELL, -(-(offset + length - first) // CELL))
        return found


def hop_tolerance(tolerance: float, depth: int) -> float:
    """What one hop must deliver so that `depth` hops in a row deliver `tolerance`."""
    return 1.0 if tolerance >= 1 else tolerance ** (1 / max(1, depth))
