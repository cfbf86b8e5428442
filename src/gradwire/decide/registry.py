"""Registry: controllers by name; gradwire's, and those of other packages in the group `gradwire.controllers`."""

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
_BUILT_IN: Final[dict[str, Callable[[], Controller]]] = {"auto": Auto, "netsense": NetSense, "dc2": Dc2}


def controller_names() -> list[str]:
    return sorted({*_BUILT_IN, *(entry.name for entry in entry_points(group=GROUP))})


def is_controller(name: str) -> bool:
    return name in _BUILT_IN or bool(entry_points(group=GROUP, name=name))


def is_built_in(name: str) -> bool:
    """Whether the controller is gradwire's, and so chooses only levels like those of the ladder."""
    return name in _BUILT_IN


def make_controller(name: str) -> Controller:
    """A new controller; ConfigError when there is none of that name."""
    if name in _BUILT_IN:
        return _BUILT_IN[name]()
    for entry in entry_points(group=GROUP, name=name):
        made: Controller = entry.load()()
        if not callable(getattr(made, "decide", None)):
            raise ConfigError(
                f"level: controller {name!r} ({entry.value}) has no method decide(job, view, facts, now); add it, "
                "see docs/controllers.md"
            )
        return made
    raise ConfigError(f"level: {name!r} is not a controller; choose one of {', '.join(controller_names())}")
