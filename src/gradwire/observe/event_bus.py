"""Event bus: passes each event of a session to the summary, to the recorder if there is one, and to users' sinks.

A user's sink that raises is logged once and removed, so that no view can stop training.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from gradwire.clock import Clock
from gradwire.errors import ConfigError
from gradwire.events import Attached, Ended, Event, Noted, Sink, finite
from gradwire.observe.recorder import Recorder
from gradwire.observe.summary import SummarySink
from gradwire.suggest import nearest

log = logging.getLogger("gradwire")

# Names with a meaning of their own, and the similarity (difflib's ratio) above which another name is a typing error.
NOTED: Final = ("loss", "accuracy", "epoch", "total_steps")
TYPO_RATIO: Final = 0.8


@dataclass(frozen=True, slots=True)
class UserNote:
    """Values that a user passed to `note`."""

    loss: float | None = None
    accuracy: float | None = None
    epoch: float | None = None
    total_steps: int | None = None
    values: Mapping[str, float] = field(default_factory=dict)


class EventBus:
    """Passes events to sinks; `close` emits `ended` and finishes the recording."""

    def __init__(self, clock: Clock, recorder: Recorder | None = None) -> None:
        self.summary_sink = SummarySink()
        self._clock = clock
        self._recorder = recorder
        self._attached: Attached | None = None
        self._sinks: tuple[Sink, ...] = (self.summary_sink,) if recorder is None else (self.summary_sink, recorder)
        self._user_sinks: tuple[Callable[[Event], None], ...] = ()
        # Events come from several threads; users' sinks get one at a time. Re-entrant: a sink may call `note` itself.
        self._user_lock = threading.RLock()

    def emit(self, event: Event) -> None:
        for sink in self._sinks:
            sink.emit(event)
        if self._user_sinks:
            with self._user_lock:
                for take in self._user_sinks:
                    self._call(take, event)
        if type(event) is Attached:
            self._attached = event

    def add(self, sink: Sink | Callable[[Event], None]) -> None:
        """Add a user's sink. It first receives `attached`, then every later event."""
        take = sink if callable(sink) else sink.emit
        self._user_sinks = (*self._user_sinks, take)
        if self._attached is not None:
            self._call(take, self._attached)

    def note(self, step: int, noted: UserNote) -> None:
        _check_names(noted.values)
        own = ((name, _number(name, value)) for name, value in noted.values.items())
        values = {name: value for name, value in own if value is not None}
        loss, accuracy, epoch, total = (_number(name, getattr(noted, name)) for name in NOTED)
        total_steps = None if total is None else int(total)
        given = {name: getattr(noted, name) for name in NOTED} | dict(noted.values)
        known = {**values, "loss": loss, "accuracy": accuracy, "epoch": epoch, "total_steps": total}
        nonfinite = tuple(name for name, value in given.items() if value is not None and known.get(name) is None)
        self.emit(Noted(self._clock.now(), step, loss, accuracy, epoch, total_steps, values, nonfinite))

    def close(self, step: int) -> None:
        self.emit(Ended(self._clock.now(), step))
        if self._recorder is not None:
            self._recorder.close()

    def _call(self, take: Callable[[Event], None], event: Event) -> None:
        try:
            take(event)
        except Exception:  # a user's code: it must not stop training
            log.exception("an event sink failed and will not be called again")
            self._user_sinks = tuple(other for other in self._user_sinks if other is not take)


def attached(at: float, place: tuple[int, int], parameters: int, config: dict[str, Any]) -> Attached:
    """The `attached` event of this process; `place` is (rank, world size)."""
    site = os.environ.get("GRADWIRE_SITE", "")
    return Attached(at, *place, parameters, config, host_name(), site, _version("gradwire"), _version("torch"))


def host_name() -> str:
    """This host's name in views and errors."""
    return os.environ.get("GRADWIRE_HOST") or socket.gethostname()


def _number(name: str, given: float | None) -> float | None:
    """A user's number (a tensor, a numpy scalar) as a Python float; ConfigError if it is not one number."""
    if given is None:
        return None
    try:
        return finite(float(given))
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ConfigError(f"note: {name} must be one number, but it is {given!r:.60}") from error


def _check_names(values: Mapping[str, float]) -> None:
    """ConfigError for a name that is almost `loss` or another known one. `loss2` and `val_loss` are valid names."""
    for name in values:
        meant = nearest(name, NOTED, TYPO_RATIO)
        if meant and meant not in name:
            raise ConfigError(
                f"note: unknown name {name!r}; did you mean {meant!r}? If not, choose a less similar name"
            )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
