"""Global weights: what all ranks started the round from, and the pseudo-gradients towards each rank's own weights.

    pseudo-gradient = global weights - local weights

In: a model's parameters (the local weights), which every rank changes alone during a round. The pseudo-gradients are
the gradients of `parameters`, which are views of the global weights: an outer optimizer steps them. All memory is flat
by bucket and kept from round to round.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from gradwire.local_steps.weight_buckets import CAP, Named, describe, flat_type, group_parameters
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
        for outer, view, local in zip(made.outer, _views(gradient, bucket), made.local, strict=True):
            outer.grad = view.detach()
            outer.detach().copy_(local.detach())
        return made

    def measure(self) -> Tensor:
        """Write the pseudo-gradient."""
        for outer, local in zip(self.outer, self.local, strict=True):
            torch.sub(outer.detach(), local.detach(), out=outer.grad)
        return self.gradient

    def reset_local(self) -> None:
        """Set the local weights to the global ones."""
        for outer, local in zip(self.outer, self.local, strict=True):
            local.detach().copy_(outer.detach())


class GlobalWeights:
    """All buckets of a model."""

    def __init__(self, named: Iterable[Named], cap: int = CAP) -> None:
        groups = list(group_parameters(named, cap))
        self.buckets = [WeightBucket.of(i, group, i == len(groups) - 1) for i, group in enumerate(groups)]
        self.parameters: Sequence[nn.Parameter] = [one for bucket in self.buckets for one in bucket.outer]

    def at(self, step: int) -> Iterator[tuple[WeightBucket, Bucket]]:
        """Every bucket, and its description at this step of the session."""
        return ((one, replace(one.bucket, step=step)) for one in self.buckets)

    def reset_local(self) -> None:
        for bucket in self.buckets:
            bucket.reset_local()

    def flat_copies(self) -> list[Tensor]:
        """The global weights, for `distance`."""
        return [one.flat.clone() for one in self.buckets]

    def distance(self, before: Sequence[Tensor]) -> float:
        """The norm of the change of the global weights since these copies were made, which are overwritten."""
        changes = [one.sub_(bucket.flat) for bucket, one in zip(self.buckets, before, strict=True)]
        return float(torch.stack([one.double().square().sum().cpu() for one in changes]).sum().sqrt())

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
        return {name: local.detach().clone() for name, _, local in self._named()}

    def load_global(self, state: Mapping[str, Tensor]) -> None:
        for name, outer, _ in self._named():
            outer.detach().copy_(state[name])

    def load_local(self, state: Mapping[str, Tensor]) -> None:
        for name, _, local in self._named():
            local.detach().copy_(state[name])

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(outer.shape) for name, outer, _ in self._named()}

    def _named(self) -> Iterator[tuple[str, nn.Parameter, nn.Parameter]]:
        for one in self.buckets:
            for part, outer, local in zip(one.bucket.slices, one.outer, one.local, strict=True):
                yield part.name, outer, local


def _views(flat: Tensor, bucket: Bucket) -> tuple[nn.Parameter, ...]:
    parts = ((part, flat[part.offset : part.offset + part.numel]) for part in bucket.slices)
    return tuple(nn.Parameter(values.view(part.shape)) for part, values in parts)
