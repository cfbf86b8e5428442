"""Optimizer kind: finds out whether a model's optimizer divides by the root of squared gradients, as Adam does, and its
learning rate.

The steps of an optimizer that has one of the model's parameters show it (integrations/optimizer_watch.py): adaptive
optimizers keep a second moment in their state.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, Final

from torch import Tensor
from torch.optim import Optimizer

from gradwire.compress.gradient_sample import GradientSampler
from gradwire.integrations.optimizer_watch import watch

# Names of second moments in the states of torch's optimizers and of common others.
SECOND_MOMENTS: Final = frozenset(
    {"exp_avg_sq", "exp_inf", "square_avg", "sum", "exp_avg_sq_row", "max_exp_avg_sq", "state2", "second_moment"}
)


class OptimizerWatch:
    """Sets the sampler's `adaptive` once and its `rate` at every step. Ends when the model or the sampler is deleted;
    keeps neither alive."""

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
        for group in optimizer.param_groups:
            ours = next((p for p in group["params"] if id(p) in self._ids), None)
            if ours is not None:
                self._learn(sampler, optimizer, group, ours)
                break
        return False

    @staticmethod
    def _learn(sampler: GradientSampler, optimizer: Optimizer, group: dict[str, Any], ours: Tensor) -> None:
        if sampler.adaptive is None:  # plain SGD keeps no state
            sampler.adaptive = bool(SECOND_MOMENTS & optimizer.state.get(ours, {}).keys())
        rate = group.get("lr")  # a tensor may be on a device, which would have to be waited for
        sampler.rate = float(rate) if isinstance(rate, float | int) else None


def watch_optimizer(parameters: Iterable[Tensor], sampler: GradientSampler | None) -> None:
    """Find out the kind for this sampler; nothing without one."""
    if sampler is not None:
        watch(OptimizerWatch(parameters, sampler))
