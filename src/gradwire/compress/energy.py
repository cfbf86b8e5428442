"""Energy of the residual relative to the gradient's, estimated from some thousand elements of both.

What waits differs from layer to layer, by factors of ten with low rank, so the elements are taken in short runs at
equal distances: every layer counts with its size, and few cache lines are touched.
"""

from __future__ import annotations

from typing import Final

from torch import Tensor

# Elements of a bucket that are sampled; all of them would cost a pass over memory.
SAMPLE: Final = 4096
RUN: Final = 16


def sampled_span(step: int, numel: int) -> slice:
    """A span of a bucket on a device, which one copy takes to the host; another one in every step."""
    start = (step * 7919 * SAMPLE) % max(1, numel - SAMPLE)
    return slice(start, start + SAMPLE)


def sampled_runs(step: int, flat: Tensor) -> Tensor:
    """Runs at equal distances, at other places in every step; the whole of a small tensor."""
    distance = flat.numel() // (SAMPLE // RUN)
    if distance <= RUN:
        return flat[:SAMPLE]
    start = step * 7919 % (distance - RUN + 1)
    return flat[start : start + distance * (SAMPLE // RUN - 1) + RUN].unfold(0, RUN, distance).flatten()


def energies(step: int, residual: Tensor, gradient: Tensor, energy_ratio: float = 1.0) -> tuple[float, float]:
    """Squared norms of the same elements of both; they differ from step to step.

    `energy_ratio` is the energy of what this rank encodes relative to its own gradient's.
    """
    waits, fresh = sampled_runs(step, residual).float(), sampled_runs(step, gradient)
    return float(waits.dot(waits)), energy_ratio * float(fresh.dot(fresh))
