"""Mean state: what several ranks saved, as one rank of a job of another size continues with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


def mean_by_name(named: Sequence[Mapping[str, Tensor]], weights: Sequence[float] | None = None) -> dict[str, Tensor]:
    """The mean by name, with these weights where they are given; values that are no floating-point numbers are the
    first one's."""
    if len(named) == 1:
        return dict(named[0])
    factors = [1.0] * len(named) if weights is None else [len(named) * one / sum(weights) for one in weights]
    return {
        name: torch.stack([one[name] * factor for one, factor in zip(named, factors, strict=True)]).mean(0)
        if value.is_floating_point()
        else value
        for name, value in named[0].items()
    }
