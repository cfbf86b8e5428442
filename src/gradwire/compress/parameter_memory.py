"""Parameter memory: one value per element of the gradient, kept from step to step.

Values are stored flat per bucket for speed, and by parameter name: when DDP changes its bucket layout, and when a
checkpoint is loaded, they are found by name. float32 or, where that is asked for, bfloat16 (compress/residual.py),
whatever the model's or torch's default type is.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count

import torch
from torch import Tensor

from gradwire.compress.residual import opened, stored_as
from gradwire.errors import ConfigError
from gradwire.types import Bucket


class ParameterMemory:
    """`what` names the kind of values in error messages. `seed` begins those of its roundings, where it rounds."""

    def __init__(self, what: str, dtype: torch.dtype = torch.float32, seed: int = 0) -> None:
        self._what = what
        self._dtype = dtype
        self._seeds = count(seed << 32)
        self._layouts: dict[int, Bucket] = {}
        self._flat: dict[int, Tensor] = {}
        self._named: dict[str, Tensor] = {}

    def fits(self, bucket: Bucket) -> bool:
        """Whether the stored layout of the bucket is its present one."""
        known = self._layouts.get(bucket.index)
        return known is not None and known.slices == bucket.slices

    def holds(self, bucket: Bucket) -> bool:
        """Whether there may be values for this bucket, also from another layout or a checkpoint."""
        return bucket.index in self._flat or any(part.name in self._named for part in bucket.slices)

    def find(self, index: int) -> Tensor | None:
        return self._flat.get(index)

    def of(self, bucket: Bucket, device: torch.device) -> Tensor:
        """The bucket's values, zero for parameters without stored ones."""
        if not self.fits(bucket):
            flat = torch.zeros(bucket.numel, dtype=self._dtype, device=device)
            for part in bucket.slices:
                known = self._named.get(part.name)
                if known is not None and known.numel() != part.numel:
                    raise ConfigError(
                        f"{self._what} of {part.name!r} has {known.numel()} elements, the parameter has {part.numel}: "
                        "the checkpoint belongs to another model; load the one of this model"
                    )
                if known is not None:
                    flat[part.offset : part.offset + part.numel].copy_(known)
            self.put(bucket, flat)
        return self._flat[bucket.index]

    def put(self, bucket: Bucket, flat: Tensor) -> None:
        """Make `flat` the bucket's values."""
        self._layouts[bucket.index], self._flat[bucket.index] = bucket, flat
        for part in bucket.slices:
            self._named[part.name] = flat[part.offset : part.offset + part.numel]

    def forget(self, bucket: Bucket) -> None:
        self._layouts.pop(bucket.index, None)
        self._flat.pop(bucket.index, None)
        for part in bucket.slices:
            self._named.pop(part.name, None)

    def add(self, stored: Tensor, values: Tensor, factor: float = 1.0) -> None:
        """stored += factor x values; `stored` is a part of what is kept here, or has the same type."""
        with opened(stored, next(self._seeds)) as wide:
            wide.add_(values.to(wide), alpha=factor)

    def scale(self, stored: Tensor, factor: float) -> None:
        with opened(stored, next(self._seeds)) as wide:
            wide.mul_(factor)

    def rescale(self, factor: float) -> None:
        for flat in self._flat.values():
            self.scale(flat, factor)
        laid_out = {part.name for bucket in self._layouts.values() for part in bucket.slices}
        for value in (value for name, value in self._named.items() if name not in laid_out):
            self.scale(value, factor)  # loaded from a checkpoint, bucket not used yet

    def state(self) -> dict[str, Tensor]:
        """A copy, by parameter."""
        return {name: value.clone() for name, value in self._named.items()}

    def load(self, named: Mapping[str, Tensor]) -> None:
        """Values of any type; a copy of them."""
        self._layouts.clear()
        self._flat.clear()
        self._named = {name: stored_as(value, self._dtype, next(self._seeds)) for name, value in named.items()}
