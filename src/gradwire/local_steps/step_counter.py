"""Step counter: calls back after every step of the model's optimizers, and after every step that a loss scaler skips.

Of several optimizers each must have made (or skipped) its step: the last of them ends it. If one makes more steps than
another, the one with the fewest counts.

A skipped step counts too. With local steps a gradient overflows on one rank alone, so if only steps that were made
counted, ranks would reach the end of a round at different iterations, and after the last iteration some would wait for
a rank that has no more. torch calls no hook for a skipped step, so the scaler's `step` is wrapped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from gradwire.errors import ConfigError
from gradwire.local_steps.inner_state import equalise_optimizer, equalise_scalers
from gradwire.local_steps.model_parameters import ModelParameters, optimizers_of, unwrapped
from gradwire.runtime.loss_scaling import Scaler


class StepCounter:
    """Counts the steps of the optimizers that were bound."""

    def __init__(self, parameters: ModelParameters, on_step: Callable[[], None]) -> None:
        self._parameters = parameters
        self._on_step = on_step
        self._steps: dict[Optimizer, int] = {}
        self._scalers: list[Scaler] = []
        self._undo: list[Callable[[], None]] = []
        self._count = 0
        # While a step is counted: whether any optimizer made it, that is, a loss scaler did not skip it.
        self.made = False

    @property
    def bound(self) -> bool:
        """Whether the optimizers are known."""
        return bool(self._steps)

    def bind(self, given: object) -> None:
        """Count the steps of this optimizer, or of these, from now on; ConfigError where others are counted already."""
        found = optimizers_of(given)
        self._parameters.check(*found)
        if not self._steps:
            self._steps = dict.fromkeys(found, 0)
            self._undo += [one.register_step_post_hook(self._stepped).remove for one in found]
        elif list(self._steps) != found:
            raise ConfigError(
                "optimizer: the steps of another optimizer are counted for this model; pass the same ones, or attach "
                "before the first step"
            )

    def bind_at_step(self, optimizer: Optimizer, made: bool = True) -> None:
        """Where no optimizer was passed: take the one that made or skipped this step, if it steps the model."""
        if not self.bound and self._parameters.has_any(optimizer):
            self.bind(optimizer)
            self._count_step(optimizer, made)

    def follow(self, scaler: Scaler) -> None:
        """Count the steps that this scaler skips."""
        wrapped = getattr(scaler, "step", None)
        if wrapped is None or getattr(wrapped, "counts_for", None) is self:
            return

        def step(optimizer: object, *args: Any, **kwargs: Any) -> Any:
            before = self._steps.get(unwrapped(optimizer))
            result = wrapped(optimizer, *args, **kwargs)
            self._count_skipped(unwrapped(optimizer), before)
            return result

        step.counts_for = self  # type: ignore[attr-defined]
        scaler.step = step  # type: ignore[attr-defined]
        self._scalers.append(scaler)
        self._undo.append(lambda: _remove_step(scaler, step))

    @property
    def found(self) -> Scaler | None:
        """What a search of the training loop finds is followed (integrations/scaler_search.py)."""
        return None

    @found.setter
    def found(self, scaler: Scaler | None) -> None:
        if scaler is not None:
            self.follow(scaler)

    def equalise(self, group: ProcessGroup, timeout: float) -> None:
        """Make the optimizers' states and the scale of every scaler equal on all ranks."""
        for one in self._steps:
            equalise_optimizer(one, group, timeout)
        equalise_scalers(self._scalers, group)

    def close(self) -> None:
        """Count no more."""
        undo, self._undo = self._undo, []
        for one in undo:
            one()

    def _count_skipped(self, optimizer: Optimizer, before: int | None) -> None:
        if self._steps.get(optimizer) != before or not self._undo:
            return
        if optimizer in self._steps:
            self._count_step(optimizer, made=False)
        else:
            self.bind_at_step(optimizer, made=False)

    def _stepped(self, optimizer: Optimizer, *_: object) -> None:
        self._count_step(optimizer, made=True)

    def _count_step(self, optimizer: Optimizer, made: bool) -> None:
        self._steps[optimizer] += 1
        self.made = self.made or made
        if min(self._steps.values()) > self._count:
            self._count += 1
            self._on_step()
            self.made = False


def _remove_step(scaler: Scaler, step: object) -> None:
    """Remove the wrapper, unless somebody wrapped it again."""
    if vars(scaler).get("step") is step:
        del scaler.step  # type: ignore[attr-defined]
