"""Registry: controllers by name; ours, and those that other packages name in the group `gradwire.controllers`."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Final

from gradwire.decide.auto import Auto
from gradwire.decide.base import Controller
from gradwire.decide.dc2 import Dc2
from gradwire.decide.netsense import NetSense
from gradwire.errors import ConfigError

GROUP: Final = "gradwire.controllers"
_OURS: Final[dict[str, Callable[[], Controller]]] = {"auto": Auto, "netsense": NetSense, "dc2": Dc2}


def controller_names() -> list[str]:
    return sorted({*_OURS, *(entry.name for entry in entry_points(group=GROUP))})


def is_controller(name: str) -> bool:
    return name in _OURS or bool(entry_points(group=GROUP, name=name))


def is_ours(name: str) -> bool:
    """Whether the controller comes with gradwire and keeps to the ladder's levels, or their like."""
    return name in _OURS


def make_controller(name: str) -> Controller:
    """A fresh controller; ConfigError when there is none of that name."""
    if name in _OURS:
        return _OURS[name]()
    for entry in entry_points(group=GROUP, name=name):
        made: Controller = entry.load()()
        if not callable(getattr(made, "decide", None)):
            raise ConfigError(f"controller {name!r} ({entry.value}) has no method decide(job, view, facts, now)")
        return made
    raise ConfigError(f"level: no controller {name!r}; there are {', '.join(controller_names())}")
