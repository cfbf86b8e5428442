"""Mean state: what several ranks saved, as one rank of a job of another size continues with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


def mean_by_name(named: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The mean by name; values that are no floating-point numbers are the first one's."""
    if len(named) == 1:
        return dict(named[0])
    return {
        name: torch.stack([one[name] for one in named]).mean(0) if value.is_floating_point() else value
        for name, value in named[0].items()
    }
