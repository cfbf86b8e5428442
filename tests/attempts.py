"""Measurements on a machine that other programs use too."""

from __future__ import annotations

from collections.abc import Callable


def best_of(attempts: int, good: Callable[[float], bool], measure: Callable[[], float]) -> float:
    """Other programs on the machine spoil single measurements; what is wrong itself spoils them all."""
    value = measure()
    for _ in range(attempts - 1):
        if good(value):
            break
        value = measure()
    return value


def one_passes(attempts: int, trial: Callable[[], None]) -> None:
    """The same for trials that assert several things: all of them must be true of one trial."""
    for left in reversed(range(attempts)):
        try:
            trial()
            return
        except AssertionError:
            if not left:
                raise
