"""Optimizer kind: finds out whether a model's optimizer divides by the root of squared gradients, as Adam does.

torch calls a global hook after every optimizer's step. The first step of an optimizer that has one of the model's
parameters tells: adaptive optimizers keep a second moment in their state. A process has one hook for all models; it
stays, because torch iterates over its hooks while it calls them, and does nothing when no model is watched.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from functools import cache
from typing import Any, Final

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from gradwire.compress.gradient_sample import GradientSampler

# Names of second moments in the states of torch's optimizers and of common others.
SECOND_MOMENTS: Final = frozenset(
    {"exp_avg_sq", "exp_inf", "square_avg", "sum", "exp_avg_sq_row", "max_exp_avg_sq", "state2", "second_moment"}
)


class OptimizerWatch:
    """Sets the sampler's `adaptive` once. Ends when it is known or the model is gone; keeps neither alive."""

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


_watches: list[OptimizerWatch] = []


@cache
def _register() -> None:
    """Register the hook, once in a process."""
    register_optimizer_step_post_hook(_on_step)


def _on_step(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[Any, Any]) -> None:
    _watches[:] = [watch for watch in _watches if not watch.ended_by(optimizer)]


def watch_optimizer(parameters: Iterable[Tensor], sampler: GradientSampler | None) -> None:
    """Watch where there is a sampler to tell."""
    if sampler is not None:
        _register()
        _watches.append(OptimizerWatch(parameters, sampler))
