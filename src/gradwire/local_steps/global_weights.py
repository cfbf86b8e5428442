"""Global weights: what all ranks started the round from, and the pseudo-gradients towards each rank's own weights.

    pseudo-gradient = global weights - local weights

In: a model's parameters (the local weights), which every rank changes alone during a round. The pseudo-gradients become
the gradients of `parameters`, which are views of the global weights, from `measure` until `follow_global`: an outer
optimizer steps those that have one. All memory is flat by bucket and kept from round to round.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor, nn

from gradwire.local_steps.fragments import split_layers
from gradwire.local_steps.weight_buckets import CAP, Named, describe, flat_type, group_parameters, own_values
from gradwire.types import Bucket


class FlatWeights:
    """The global weights of a bucket, for levels that prune."""

    def __init__(self, flat: Tensor) -> None:
        self._flat = flat

    def read(self, start: int, numel: int) -> Tensor:
        return self._flat[start : start + numel].float().clone()

    def zero(self, places: Tensor) -> None:
        self._flat[places] = 0.0


@dataclass(frozen=True, slots=True)
class WeightBucket:
    """One bucket: `outer` are views of `flat`, and their gradients are views of `gradient`."""

    bucket: Bucket
    local: tuple[nn.Parameter, ...]
    outer: tuple[nn.Parameter, ...]
    flat: Tensor
    gradient: Tensor

    @classmethod
    def of(cls, index: int, group: list[Named], is_last: bool) -> WeightBucket:
        """The global weights are what the parameters are now."""
        bucket = describe(index, group, is_last)
        first = group[0][1]
        flat = torch.empty(bucket.numel, dtype=flat_type(first), device=first.device)
        gradient = torch.zeros_like(flat)
        made = cls(bucket, tuple(one for _, one in group), _views(flat, bucket), flat, gradient)
        for outer, local in zip(made.outer, made.local, strict=True):
            outer.detach().copy_(own_values(local))
        return made

    def set_gradients(self) -> None:
        """Give the outer parameters their gradients; an outer optimizer leaves those without one as they are."""
        for outer, view in zip(self.outer, _views(self.gradient, self.bucket), strict=True):
            outer.grad = view.detach()

    def drop_gradients(self) -> None:
        for outer in self.outer:
            outer.grad = None

    def measure(self) -> Tensor:
        """Write the pseudo-gradient."""
        self.set_gradients()
        for outer, local in zip(self.outer, self.local, strict=True):
            torch.sub(outer.detach(), own_values(local), out=outer.grad)
        return self.gradient

    def measure_from(self, values: Tensor) -> Tensor:
        """Write the pseudo-gradient of these local weights (`local_copy`), instead of the present ones."""
        self.set_gradients()
        return torch.sub(self.flat, values.to(self.flat.dtype), out=self.gradient)

    def scale(self, factor: float) -> None:
        """Multiply the pseudo-gradient; by 0 also where it is not finite."""
        if factor == 0:
            self.gradient.zero_()
        elif factor != 1:
            self.gradient.mul_(factor)

    def local_copy(self) -> Tensor:
        """The local weights, flat."""
        return torch.cat([own_values(local).flatten() for local in self.local])

    def follow_global(self, sent: Tensor | None, progress: float) -> None:
        """The outer step is done. The local weights become the global ones, and this share of what they changed since
        they were `sent` is added."""
        self.drop_gradients()
        if sent is None:
            self.reset_local()
            return
        for outer, local, part in zip(self.outer, self.local, self._split(sent), strict=True):
            own = own_values(local)
            own.copy_(outer.detach() + progress * (own - part.view(own.shape)))

    def move_local(self, shift: Tensor) -> None:
        """Add this to the local weights, flat."""
        for local, part in zip(self.local, self._split(shift), strict=True):
            own = own_values(local)
            own.copy_(own + part.view(own.shape))

    def reset_local(self) -> None:
        """Set the local weights to the global ones."""
        for outer, local in zip(self.outer, self.local, strict=True):
            own_values(local).copy_(outer.detach())

    def _split(self, flat: Tensor) -> list[Tensor]:
        """By parameter."""
        return list(flat.split([part.numel for part in self.bucket.slices]))


class GlobalWeights:
    """All buckets of a model, in `count` fragments of whole layers."""

    def __init__(self, named: Iterable[Named], cap: int = CAP, count: int = 1) -> None:
        parts = [list(group_parameters(part, cap)) for part in split_layers(list(named), count)]
        groups = [group for part in parts for group in part]
        self.buckets = [WeightBucket.of(i, group, i == len(groups) - 1) for i, group in enumerate(groups)]
        left = iter(self.buckets)
        self.fragments = [list(islice(left, len(part))) for part in parts]
        self.parameters: Sequence[nn.Parameter] = [one for bucket in self.buckets for one in bucket.outer]

    def reset_local(self) -> None:
        for bucket in self.buckets:
            bucket.reset_local()

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """The model has the global weights inside, and its local ones again afterwards."""
        saved = self.local_state()
        self.reset_local()
        try:
            yield
        finally:
            self.load_local(saved)

    def global_state(self) -> dict[str, Tensor]:
        """A copy, by parameter."""
        return {name: outer.detach().clone() for name, outer, _ in self._named()}

    def local_state(self) -> dict[str, Tensor]:
        """A copy, by parameter."""
        return {name: own_values(local).clone() for name, _, local in self._named()}

    def load_global(self, state: Mapping[str, Tensor]) -> None:
        for name, outer, _ in self._named():
            outer.detach().copy_(state[name])

    def load_local(self, state: Mapping[str, Tensor]) -> None:
        for name, _, local in self._named():
            own_values(local).copy_(state[name])

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(outer.shape) for name, outer, _ in self._named()}

    def _named(self) -> Iterator[tuple[str, nn.Parameter, nn.Parameter]]:
        for one in self.buckets:
            for part, outer, local in zip(one.bucket.slices, one.outer, one.local, strict=True):
                yield part.name, outer, local


def _views(flat: Tensor, bucket: Bucket) -> tuple[nn.Parameter, ...]:
    parts = ((part, flat[part.offset : part.offset + part.numel]) for part in bucket.slices)
    return tuple(nn.Parameter(values.view(part.shape)) for part, values in parts)
