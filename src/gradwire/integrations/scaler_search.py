"""Scaler search: find the loss scaler of a training loop that did not pass it to `attach`.

Before a model's first forward pass in training, in the thread that runs it, the variables of the calling functions are
searched: `scaler`, `self.scaler`, `accelerator.scaler`. Only frames of this same thread are read: the frames of another
thread change while they are read, and CPython may then follow a broken chain without end. For the same reason this is
not done by the communication hook, which autograd may call from a thread of its own. (`gc.get_objects()` would find
every scaler, but it takes references to tuples that other threads are still building.)
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Iterator
from types import FrameType, ModuleType
from typing import Final, Protocol

import torch
from torch import nn

from gradwire.runtime.loss_scaling import Scaler

# References to a frame's dictionary of variables that are not a user's: the frame's, `_locals`' own, getrefcount's.
OWN_REFERENCES: Final = 3


class UsesScaler(Protocol):
    """Receives the scaler that was found, or None, before the first step."""

    found: Scaler | None


class ScalerSearch:
    """A forward pre-hook that searches once and removes itself. Copies of the model search nothing."""

    def __init__(self, model: nn.Module, scaling: UsesScaler) -> None:
        self._scaling = scaling
        self._registered = model.register_forward_pre_hook(self)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(self, module: nn.Module, inputs: object) -> None:
        if module.training and torch.is_grad_enabled():
            self._registered.remove()
            self._scaling.found = find_scaler()

    def __reduce__(self) -> tuple[type[NoSearch], tuple[()]]:
        return NoSearch, ()


class NoSearch:
    """The search of a copied model: a copy is not attached."""

    def __call__(self, module: nn.Module, inputs: object) -> None:
        """Nothing to find."""


def find_scaler() -> Scaler | None:
    """The only enabled GradScaler that the calling functions can reach; None, with a warning, if there are several."""
    found = {id(scaler): scaler for scaler in _reachable(sys._getframe(1)) if scaler.is_enabled()}
    if len(found) > 1:
        warnings.warn(
            f"gradwire: this training loop has {len(found)} loss scalers; pass the one of this model, "
            "attach(model, scaler=scaler), so that residuals follow its scale and the steps that it skips",
            stacklevel=2,
        )
    return next(iter(found.values())) if len(found) == 1 else None


def _reachable(frame: FrameType | None) -> Iterator[torch.amp.GradScaler]:
    while frame is not None:
        for value in [*_locals(frame), *frame.f_globals.values()]:
            yield from (one for one in (value, *_attributes(value)) if issubclass(type(one), torch.amp.GradScaler))
        frame = frame.f_back


def _locals(frame: FrameType) -> list[object]:
    """The values of a frame's variables. Up to Python 3.12 a function's frame keeps the dictionary that it makes for
    this, and with it a model that the function deletes later: it is emptied, unless the function called `locals()` and
    holds it. (In a module or class body the dictionary is the variables themselves.)"""
    variables = frame.f_locals
    values = list(variables.values())
    function = bool(frame.f_code.co_flags & inspect.CO_OPTIMIZED)
    if function and type(variables) is dict and sys.getrefcount(variables) <= OWN_REFERENCES:
        variables.clear()
    return values


def _attributes(value: object) -> list[object]:
    """An instance's attributes, without running any of its code; those of modules and classes are too many."""
    if issubclass(type(value), (type, ModuleType)):
        return []
    try:
        attributes = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return []
    return list(attributes.values()) if type(attributes) is dict else []
