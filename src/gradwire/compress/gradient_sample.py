"""Gradient sample: a few thousand elements of the gradient, the same ones at every step.

Rank 0 copies them when a bucket is ready, before its exchange; `auto` measures on them what each level would lose.
Elements are taken in short runs at equal distances, so that every layer counts with its size and a copy touches few
cache lines.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# Elements of the whole gradient: at 0.1 % four elements are selected, and a copy takes some microseconds.
SIZE: Final = 4096
RUN: Final = 16


class GradientSampler:
    """Samples the buckets of a gradient of `parameters` elements, on the training thread. `adaptive` is whether the
    optimizer divides by the root of squared gradients, `rate` its learning rate, where they are known
    (integrations/optimizer_kind.py)."""

    def __init__(self, parameters: int) -> None:
        self._distance = RUN * max(1, parameters // SIZE)
        self._places: dict[tuple[int, torch.device], Tensor] = {}
        self._parts: list[NDArray[np.float32]] = []
        self.adaptive: bool | None = None
        self.rate: float | None = None

    def add(self, gradient: Tensor) -> None:
        """A bucket of the present step is ready."""
        self._parts.append(self._sampled(gradient))

    def take_step(self) -> NDArray[np.float32] | None:
        """The sample of the buckets since the last call; None without any."""
        parts, self._parts = self._parts, []
        return np.concatenate(parts) if parts else None

    def _sampled(self, gradient: Tensor) -> NDArray[np.float32]:
        key = gradient.numel(), gradient.device
        places = self._places.get(key)
        if places is None:
            starts = torch.arange(0, gradient.numel(), self._distance).unsqueeze(1)
            found = (starts + torch.arange(RUN)).view(-1)
            places = self._places[key] = found[found < gradient.numel()].to(gradient.device)
        values: NDArray[np.float32] = gradient[places].float().cpu().numpy()
        return values
