"""TransportSwitch: the open transports of a session, and the one that carries the step in progress.

A session begins with one transport. Another one can be opened in the background, by a thread of its own, while training
goes on over the first; `use` changes between them at a step boundary. Every exchange of a step goes over one transport,
and a step ends before the next begins, so nothing is in flight when it changes. All ranks open the same transports in
the same order, and change at the same step: the decision that pulses carry says when. Trees that did not prove better
are closed again: they would measure links, and their plan would be out of date when they are tried again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from gradwire.closing import Closing
from gradwire.decide.base import FootprintOf
from gradwire.errors import GradwireError
from gradwire.level import Level
from gradwire.runtime.ack_source import AckSource
from gradwire.runtime.pipeline import Pipeline
from gradwire.sites.reducer import TreeReducer
from gradwire.types import Bucket, Footprint, Readiness, TransportKind

log = logging.getLogger("gradwire")

# Seconds that closing waits for a transport that is being opened. One that takes longer closes itself.
JOIN: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransport:
    """A transport and its lanes.

    `own_wire`: gradwire's, not the process group's. `tolerance` is the share of a frame's values that its receiver
    waits for until the deadline. `release` ends it, after the last of its lanes was closed. With a `reducer`, buckets
    are summed along the trees of a plan; lanes then carry what ranks compare beside them.
    """

    kind: TransportKind
    pipeline: Pipeline
    footprint: FootprintOf
    own_wire: bool = False
    tolerance: float = 1.0
    # None: the kernel's TCP carries it, and its sockets are read.
    acks: AckSource | None = None
    release: Callable[[], None] = lambda: None
    # Whether every peer is still connected.
    alive: Callable[[], bool] = lambda: True
    reducer: TreeReducer | None = None
    # Ends its exchanges; None: closing the pipeline does.
    close: Callable[[], None] | None = None

    def close_lanes(self) -> None:
        (self.close or self.pipeline.close)()


Opener = Callable[[TransportKind], OpenTransport]


class TransportSwitch:
    """`current` changes only by `use`, on the training thread. `opener` opens further transports, in a thread of its
    own; None: there are none. `version` counts the changes; `step` is that of the last decision."""

    def __init__(self, first: OpenTransport, opener: Opener | None = None) -> None:
        self.current = first
        self.version = self.step = 0
        self.readiness = Readiness()
        self.opener = opener
        self._open: dict[TransportKind, OpenTransport] = {first.kind: first}
        self._thread: threading.Thread | None = None
        self._lock, self._closed = threading.Lock(), False
        self._lanes: Closing | None = None
        self._endpoints: Closing | None = None

    def plan_version(self) -> int:
        """Changes with everything that footprints depend on: the transport, and the plan of its trees."""
        reducer = self.current.reducer
        return self.version << 32 | (reducer.version() if reducer is not None else 0)

    def footprint(self, level: Level, buckets: Sequence[Bucket]) -> Sequence[Footprint]:
        """What a level sends over the transport in use."""
        return self.current.footprint(level, buckets)

    def follow(self, use: TransportKind, prepare: TransportKind, step: int = 0) -> None:
        """Do what a decision says, at the beginning of a step."""
        self.step = step
        self.use(use)
        if "trees" in self._open and "trees" not in (use, prepare) and self.current.kind != "trees":
            self._retire("trees")
        self.prepare(prepare)

    def prepare(self, kind: TransportKind) -> None:
        """Open a transport in the background, unless that is done, under way or was refused."""
        if self.opener is None or kind in ("group", self.readiness.kind) or self._busy:
            return
        if kind in self._open:
            self.readiness = Readiness(kind)
            return
        name, given = f"gradwire-open-{kind}", (kind, self.opener)
        self._thread = threading.Thread(target=self._prepare, args=given, name=name, daemon=True)
        self._thread.start()

    def report(self) -> Readiness:
        """What this rank has prepared. One that lost a peer while it was not used has failed."""
        found = self.readiness
        prepared = self._open.get(found.kind)
        if found.kind in ("group", self.current.kind) or found.failed or prepared is None or prepared.alive():
            return found
        self.readiness = Readiness(found.kind, failed=True)
        return self.readiness

    def use(self, kind: TransportKind) -> None:
        """Carry the coming steps by this transport, which is open."""
        if kind != self.current.kind:
            self.current = self._open[kind]
            self.version += 1

    def close_lanes(self) -> None:
        """Let exchanges in flight finish or fail. After an error, call it again."""
        if self._thread is not None:
            self._thread.join(JOIN)
        with self._lock:
            self._closed = True
        if self._lanes is None:
            self._lanes = Closing(*(one.close_lanes for one in reversed(self._open.values())))
        self._lanes.close()

    def release(self) -> None:
        """After the last lane was closed."""
        if self._endpoints is None:
            self._endpoints = Closing(*(one.release for one in self._open.values()))
        self._endpoints.close()
        # Process groups must not wait for the garbage collector: their sockets would stay open.
        self.opener, self._open = None, {}
        self.current = replace(self.current, release=lambda: None, alive=lambda: True, acks=None, reducer=None)

    @property
    def _busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _retire(self, kind: TransportKind) -> None:
        """Close a transport that is not in use, in the background; it is opened again when it is asked for."""
        if self._busy:
            return
        retired = self._open.pop(kind)
        self.readiness = Readiness()
        self._thread = threading.Thread(target=_close, args=(retired,), name=f"gradwire-close-{kind}", daemon=True)
        self._thread.start()

    def _prepare(self, kind: TransportKind, opener: Opener) -> None:
        try:
            opened = opener(kind)
            with self._lock:
                if not self._closed:
                    self._open[kind], self.readiness = opened, Readiness(kind)
                    return
            _close(opened)
        except GradwireError as error:
            log.info("%s could not be opened, gradients stay where they are: %s", kind, error)
            self.readiness = Readiness(kind, failed=True)
        except Exception:  # the top of this thread: training does not need what it opens
            log.exception("%s could not be opened, gradients stay where they are", kind)
            self.readiness = Readiness(kind, failed=True)


def _close(one: OpenTransport) -> None:
    """Nobody waits for what it still had to send."""
    with suppress(GradwireError):
        Closing(one.close_lanes, one.release).close()
