"""Optimizer kind: finds out whether a model's optimizer divides by the root of squared gradients, as Adam does.

The first step of an optimizer that has one of the model's parameters shows it (integrations/optimizer_watch.py):
adaptive optimizers keep a second moment in their state.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Final

from torch import Tensor
from torch.optim import Optimizer

from gradwire.compress.gradient_sample import GradientSampler
from gradwire.integrations.optimizer_watch import watch

# Names of second moments in the states of torch's optimizers and of common others.
SECOND_MOMENTS: Final = frozenset(
    {"exp_avg_sq", "exp_inf", "square_avg", "sum", "exp_avg_sq_row", "max_exp_avg_sq", "state2", "second_moment"}
)


class OptimizerWatch:
    """Sets the sampler's `adaptive` once. Ends when that is set or the model is deleted; keeps neither alive."""

    def __init__(self, parameters: Iterable[Tensor], sampler: GradientSampler) -> None:
        known = list(parameters)
        self._ids = frozenset(map(id, known))
        self._model_lives = weakref.ref(known[0]) if known else lambda: None
        self._sampler = weakref.ref(sampler)

    def ended_by(self, optimizer: Optimizer) -> bool:
        """Whether nothing is left to find out after this optimizer's step."""
        sampler = self._sampler()
        if sampler is None or self._model_lives() is None:
            return True
        ours = next((p for group in optimizer.param_groups for p in group["params"] if id(p) in self._ids), None)
        if ours is None:
            return False
        # Plain SGD keeps no state.
        sampler.adaptive = bool(SECOND_MOMENTS & optimizer.state.get(ours, {}).keys())
        return True


def watch_optimizer(parameters: Iterable[Tensor], sampler: GradientSampler | None) -> None:
    """Find out the kind for this sampler; nothing without one."""
    if sampler is not None:
        watch(OptimizerWatch(parameters, sampler))
