"""Energy: how much waits in a residual beside a fresh gradient, judged from a short stretch of both."""

from __future__ import annotations

from typing import Final

from torch import Tensor

# Elements of a bucket that are looked at; the whole would cost a pass over memory.
SAMPLE: Final = 4096


def energies(step: int, residual: Tensor, gradient: Tensor, burden: float = 1.0) -> tuple[float, float]:
    """Squared norms of the same stretch of both, another one every step.

    `burden` is how much more energy what this rank encodes has than its own gradient.
    """
    start = (step * 7919 * SAMPLE) % max(1, residual.numel() - SAMPLE)
    waits, fresh = residual[start : start + SAMPLE], gradient[start : start + SAMPLE]
    return float(waits.dot(waits)), burden * float(fresh.dot(fresh))
