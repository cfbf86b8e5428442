"""Registry: controllers by name; gradwire's, and those of other packages in the group `gradwire.controllers`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any, Final

from gradwire.decide.auto import EXTRA_STEPS, Auto
from gradwire.decide.base import Controller
from gradwire.decide.dc2 import Dc2
from gradwire.decide.netsense import NetSense
from gradwire.decide.protected import ProtectedController
from gradwire.errors import ConfigError
from gradwire.level import Level

GROUP: Final = "gradwire.controllers"


def _netsense(lossiest: Level | None = None) -> Controller:
    return ProtectedController(NetSense(lossiest))


def _dc2(lossiest: Level | None = None) -> Controller:
    return ProtectedController(Dc2(lossiest))


_BUILT_IN: Final[dict[str, Callable[..., Controller]]] = {"auto": Auto, "netsense": _netsense, "dc2": _dc2}


def controller_names() -> list[str]:
    return sorted({*_BUILT_IN, *(entry.name for entry in entry_points(group=GROUP))})


def is_controller(name: str) -> bool:
    return name in _BUILT_IN or bool(entry_points(group=GROUP, name=name))


def is_built_in(name: str) -> bool:
    """Whether the controller is gradwire's, and so chooses only levels like those of the ladder."""
    return name in _BUILT_IN


def make_controller(name: str, lossiest: Level | None = None, extra_steps: float = EXTRA_STEPS) -> Controller:
    """A new controller; ConfigError when there is none of that name. The user's limits are passed to a class whose
    constructor has arguments of these names; the caller applies the cap to the others."""
    settings = {"lossiest": lossiest, "extra_steps": extra_steps}
    if name in _BUILT_IN:
        return _make(_BUILT_IN[name], settings)
    for entry in entry_points(group=GROUP, name=name):
        made = _make(entry.load(), settings)
        if not callable(getattr(made, "decide", None)):
            raise ConfigError(
                f"level: controller {name!r} ({entry.value}) has no method decide(job, view, facts, now); add it, "
                "see docs/controllers.md"
            )
        return made
    raise ConfigError(f"level: {name!r} is not a controller; choose one of {', '.join(controller_names())}")


def _make(construct: Callable[..., Controller], settings: dict[str, Any]) -> Controller:
    taken = inspect.signature(construct).parameters
    return construct(**{name: value for name, value in settings.items() if name in taken})
