"""GuardReporter: reports every act of the accuracy guard once, as an event and as a warning in the log; and what the
level in use costs in steps (runtime/slowdown_reporter.py).

Only the rank whose controller decides knows that the guard acted, so one rank of a job reports. From the event come the
lines of the summary, of `watch`, the dashboard, reports and Prometheus (`observe/guard_acts.py`).
"""

from __future__ import annotations

import logging

from gradwire.events import Faulted, Sink
from gradwire.runtime.slowdown_reporter import SlowdownReporter
from gradwire.types import Decision

log = logging.getLogger("gradwire")


class GuardReporter:
    """Keeps the last decision: as long as the guard stays with it, that is one act. `unit` is what a step of the
    session is."""

    def __init__(self, sink: Sink, unit: str = "step") -> None:
        self._sink, self._unit = sink, unit
        self._last: Decision | None = None
        self._slowdown = SlowdownReporter(sink)

    def report(self, at: float, step: int, decision: Decision) -> None:
        """Call this with every decision of the controller, in order."""
        self._slowdown.report(at, step, decision.slowdown)
        last, self._last = self._last, decision
        if not decision.guarded:
            return
        if last is not None and last.guarded and (last.level, last.version) == (decision.level, decision.version):
            return
        self._sink.emit(Faulted(at, step, "guard", decision.reason))
        harmful = "local steps" if last is not None and last.sync_every > 1 else "compression"
        log.warning("gradwire: %s harmed training, seen at %s %d: %s", harmful, self._unit, step, decision.reason)
