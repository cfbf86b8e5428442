"""Optimizer watch: calls watchers after every optimizer's step, until each has seen what it waits for.

torch calls a global hook after every optimizer's step. A process has one hook for all models; it stays, because torch
iterates over its hooks while it calls them, and does nothing when nobody watches.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Protocol

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook


class OptimizerWatcher(Protocol):
    """Waits for an optimizer's step. Must keep no model alive."""

    def ended_by(self, optimizer: Optimizer) -> bool:
        """Whether nothing is left to find out after this optimizer's step."""
        ...


_watchers: list[OptimizerWatcher] = []


@cache
def _register() -> None:
    """Register the hook, once in a process."""
    register_optimizer_step_post_hook(_on_step)


def _on_step(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[Any, Any]) -> None:
    _watchers[:] = [watcher for watcher in _watchers if not watcher.ended_by(optimizer)]


def watch(watcher: OptimizerWatcher) -> None:
    _register()
    _watchers.append(watcher)
