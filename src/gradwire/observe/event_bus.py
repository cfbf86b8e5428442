"""Watch: who hears of a session's events. One sink for the session, any number behind it.

The tally always counts; a recorder writes where one was asked for; users add sinks of their own, and one that raises is
logged once and left out from then on, so that nobody's view can stop training.
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

# What `note` knows by name, and how alike (difflib's ratio) another name must be to be a slip: one letter of four.
NOTED: Final = ("loss", "accuracy", "epoch", "total_steps")
SLIP: Final = 0.8


@dataclass(frozen=True, slots=True)
class UserNote:
    """What a user noted."""

    loss: float | None = None
    accuracy: float | None = None
    epoch: float | None = None
    total_steps: int | None = None
    values: Mapping[str, float] = field(default_factory=dict)


class EventBus:
    """Hands events on; `close` says that the session ended and finishes the recording."""

    def __init__(self, clock: Clock, recorder: Recorder | None = None) -> None:
        self.tally = SummarySink()
        self._clock = clock
        self._recorder = recorder
        self._attached: Attached | None = None
        self._sinks: tuple[Sink, ...] = (self.tally,) if recorder is None else (self.tally, recorder)
        self._theirs: tuple[Callable[[Event], None], ...] = ()
        # Events come from several threads; users' sinks get one at a time. One of them may note something itself.
        self._turn = threading.RLock()

    def emit(self, event: Event) -> None:
        for sink in self._sinks:
            sink.emit(event)
        if self._theirs:
            with self._turn:
                for take in self._theirs:
                    self._hand(take, event)
        if type(event) is Attached:
            self._attached = event

    def add(self, sink: Sink | Callable[[Event], None]) -> None:
        """From now on this one hears of everything too, beginning with how the session was attached."""
        take = sink if callable(sink) else sink.emit
        self._theirs = (*self._theirs, take)
        if self._attached is not None:
            self._hand(take, self._attached)

    def note(self, step: int, told: UserNote) -> None:
        _check_names(told.values)
        own = ((name, _number(name, value)) for name, value in told.values.items())
        values = {name: value for name, value in own if value is not None}
        loss, accuracy, epoch, total = (_number(name, getattr(told, name)) for name in NOTED)
        total_steps = None if total is None else int(total)
        self.emit(Noted(self._clock.now(), step, loss, accuracy, epoch, total_steps, values))

    def close(self, step: int) -> None:
        self.emit(Ended(self._clock.now(), step))
        if self._recorder is not None:
            self._recorder.close()

    def _hand(self, take: Callable[[Event], None], event: Event) -> None:
        try:
            take(event)
        except Exception:  # a user's code: training must not end by it
            log.exception("a sink of events failed and will not be called again")
            self._theirs = tuple(other for other in self._theirs if other is not take)


def attached(at: float, place: tuple[int, int], parameters: int, config: dict[str, Any]) -> Attached:
    """The event with what this process knows of itself; `place` is (rank, world size)."""
    site = os.environ.get("GRADWIRE_SITE", "")
    return Attached(at, *place, parameters, config, host_name(), site, _version("gradwire"), _version("torch"))


def host_name() -> str:
    """What views and errors call this host."""
    return os.environ.get("GRADWIRE_HOST") or socket.gethostname()


def _number(name: str, given: float | None) -> float | None:
    """What a user calls a number may be a tensor or numpy's; files and views get Python's."""
    if given is None:
        return None
    try:
        return finite(float(given))
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ConfigError(f"note: {name} must be one number, not {given!r:.60}") from error


def _check_names(values: Mapping[str, float]) -> None:
    """A number of one's own may have any name; what is nearly `loss` is a slip, `loss2` and `val_loss` are not."""
    for name in values:
        meant = nearest(name, NOTED, SLIP)
        if meant and meant not in name:
            raise ConfigError(f"note: {name!r} is not known; did you mean {meant!r}? Own numbers need other names")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
