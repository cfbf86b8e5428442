"""Period price: how many times more steps training needs for the same loss with local steps. Pure."""

from __future__ import annotations

from gradwire.types import Divergence


def cosine_of(divergence: Divergence, world_size: int) -> float:
    """The mean cosine between two ranks' changes of the weights. The mean of W vectors of norm n and cosine c has the
    squared norm n^2 (1 + (W - 1) c) / W."""
    if divergence.own <= 0 or world_size < 2:
        return 1.0
    return (world_size * divergence.shared / divergence.own - 1) / (world_size - 1)
