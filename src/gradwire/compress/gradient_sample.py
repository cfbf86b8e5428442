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

from gradwire.device.base import Device

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
        self._pinned: list[Tensor] = []
        self.adaptive: bool | None = None
        self.rate: float | None = None

    def add(self, gradient: Tensor, device: Device | None = None) -> None:
        """A bucket of the present step is ready; on a device, when its training stream has come so far."""
        places = self._places_of(gradient)
        if device is None:
            self._parts.append(gradient[places].float().numpy())
            return
        pinned = self._pinned_for(places.numel(), device)
        device.current_stream().launch(lambda: pinned.copy_(gradient[places], non_blocking=True))
        self._parts.append(pinned.numpy())

    def take_step(self) -> NDArray[np.float32] | None:
        """The sample of the buckets since the last call; None without any. A device has copied them all by now."""
        parts, self._parts = self._parts, []
        return np.concatenate(parts) if parts else None

    def _pinned_for(self, numel: int, device: Device) -> Tensor:
        """Memory for the next bucket of the step, kept from step to step."""
        index = len(self._parts)
        if index == len(self._pinned):
            self._pinned.append(device.pinned(4 * numel).view(torch.float32))
        elif self._pinned[index].numel() != numel:
            self._pinned[index] = device.pinned(4 * numel).view(torch.float32)
        return self._pinned[index]

    def _places_of(self, gradient: Tensor) -> Tensor:
        key = gradient.numel(), gradient.device
        places = self._places.get(key)
        if places is None:
            starts = torch.arange(0, gradient.numel(), self._distance).unsqueeze(1)
            found = (starts + torch.arange(RUN)).view(-1)
            places = self._places[key] = found[found < gradient.numel()].to(gradient.device)
        return places
