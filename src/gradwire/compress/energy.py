"""Energy of the residual relative to the gradient's, estimated from a short span of both."""

from __future__ import annotations

from typing import Final

from torch import Tensor

# Elements of a bucket that are sampled; all of them would cost a pass over memory.
SAMPLE: Final = 4096


def sampled_span(step: int, numel: int) -> slice:
    """The span of a bucket that is sampled in a step."""
    start = (step * 7919 * SAMPLE) % max(1, numel - SAMPLE)
    return slice(start, start + SAMPLE)


def energies(step: int, residual: Tensor, gradient: Tensor, energy_ratio: float = 1.0) -> tuple[float, float]:
    """Squared norms of the same span of both; the span differs from step to step.

    `energy_ratio` is the energy of what this rank encodes relative to its own gradient's.
    """
    sampled = sampled_span(step, residual.numel())
    waits, fresh = residual[sampled], gradient[sampled]
    return float(waits.dot(waits)), energy_ratio * float(fresh.dot(fresh))
