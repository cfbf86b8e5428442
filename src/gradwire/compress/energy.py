"""Energy of the residual relative to the gradient's, estimated from a short span of both."""

from __future__ import annotations

from typing import Final

from torch import Tensor

# Elements of a bucket that are sampled; all of them would cost a pass over memory.
SAMPLE: Final = 4096


def energies(step: int, residual: Tensor, gradient: Tensor, energy_ratio: float = 1.0) -> tuple[float, float]:
    """Squared norms of the same span of both; the span differs from step to step.

    `energy_ratio` is the energy of what this rank encodes relative to its own gradient's.
    """
    start = (step * 7919 * SAMPLE) % max(1, residual.numel() - SAMPLE)
    waits, fresh = residual[start : start + SAMPLE], gradient[start : start + SAMPLE]
    return float(waits.dot(waits)), energy_ratio * float(fresh.dot(fresh))
