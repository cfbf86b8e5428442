"""Layout: where envelope, counts and body lie in a frame that goes up a tree.

On a reliable hop: envelope, body. On a loss tolerant one, counts of contributors per cell stand between them, and
padding such that cells begin at multiples of CELL: then exactly whole cells are lost, and everything before them must
arrive.
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
        """Where the body begins."""
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
