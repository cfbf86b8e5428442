"""Fragments: a model's layers in groups that are synchronised one after another in a round.

In: a model's parameters by name, in their order. Out: groups of whole layers (modules with parameters of their own),
next to each other in the model and of about equal bytes; and the step of a round after which each is sent. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from gradwire.errors import ConfigError
from gradwire.local_steps.weight_buckets import Named, flat_type


def split_layers(named: Iterable[Named], count: int) -> list[list[Named]]:
    """The parameters in `count` groups; ConfigError where the model has fewer layers."""
    layers = [list(layer) for _, layer in groupby(named, key=lambda one: one[0].rpartition(".")[0])]
    if count > len(layers):
        raise ConfigError(
            f"num_fragments: {count} is more than the {len(layers)} layers of the model that have trained parameters; "
            f"set it to {len(layers)} or less"
        )
    ends = balanced([sum(_nbytes(one) for one in layer) for layer in layers], count)
    return [[one for layer in layers[first:end] for one in layer] for first, end in zip([0, *ends], ends, strict=False)]


def balanced(sizes: Sequence[int], count: int) -> list[int]:
    """Where each of `count` groups of neighbours ends, so that their sums are about equal and none is empty."""
    ends, first = list[int](), 0
    for after in reversed(range(count)):
        wanted, end, size = sum(sizes[first:]) / (after + 1), first + 1, sizes[first]
        while end < len(sizes) - after and (after == 0 or size + sizes[end] / 2 <= wanted):
            size, end = size + sizes[end], end + 1
        ends.append(end)
        first = end
    return ends


def fragment_at(step: int, sync_every: int, count: int) -> int | None:
    """The fragment that is sent after this step of a round (from 1); None after most steps. The last one is sent with
    the round's last step, the others at equal distances before it."""
    if count == 1:
        return 0 if step >= sync_every else None
    sent = (fragment for fragment in range(count) if step == (fragment + 1) * sync_every // count)
    return next(sent, None)


def _nbytes(named: Named) -> int:
    return named[1].numel() * flat_type(named[1]).itemsize
