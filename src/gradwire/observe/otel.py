"""OpenTelemetry: a sink that records a rank's events as metrics of the OpenTelemetry API (`gradwire[otel]`).

    handle.add_sink(Metrics())                  the global meter provider, which your application has set up
    handle.add_sink(Metrics(meter))             another meter

Names follow OpenTelemetry's conventions: units in UCUM, attributes instead of names with numbers. Attributes are few,
and bounded: rank, level, kind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gradwire.errors import ConfigError
from gradwire.events import Attached, Decided, Event, Failed, Faulted, NonFinite, Noted, Sensed, Stepped
from gradwire.observe.step_split import PARTS

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter

NAME: Final = "gradwire"
# The kinds of incidents; others that a later version may emit are counted as "other".
KINDS: Final = ("fallback", "guard", "peer_lost", "peer_back", "late_rank")


class Metrics:
    """Metrics of one rank. Called by one thread at a time, as all sinks are."""

    def __init__(self, meter: Meter | None = None) -> None:
        meter = meter or _global_meter()
        self._rank: dict[str, str | int] = {}
        self._steps = meter.create_histogram("gradwire.step.duration", unit="s", description="time of a step")
        self._parts = meter.create_histogram("gradwire.step.part", unit="s", description="a part of a step's time")
        self._sent = meter.create_counter("gradwire.sent", unit="By", description="what this rank sent")
        self._plain = meter.create_counter("gradwire.plain", unit="By", description="what plain DDP would have sent")
        self._decisions = meter.create_counter("gradwire.decisions", unit="{decision}", description="changes of level")
        self._incidents = meter.create_counter("gradwire.incidents", unit="{incident}", description="faults, failures")
        self._rate = meter.create_gauge("gradwire.network.rate", unit="By/s", description="estimate for the group")
        self._trip = meter.create_gauge("gradwire.network.round_trip", unit="s", description="without queueing")
        self._loss = meter.create_gauge("gradwire.loss", unit="1", description="the training loss that was noted")

    def emit(self, event: Event) -> None:
        match event:
            case Attached():
                self._rank = {"rank": event.rank}
            case Stepped():
                self._stepped(event)
            case Decided(bucket=0):
                self._decisions.add(1, self._rank | {"level": event.level})
            case Sensed():
                if event.bandwidth is not None:
                    self._rate.set(event.bandwidth, self._rank)
                if event.rtprop is not None:
                    self._trip.set(event.rtprop, self._rank)
            case Noted() if event.loss is not None:
                self._loss.set(event.loss, self._rank)
            case Faulted():
                self._count(event.kind if event.kind in KINDS else "other")
            case NonFinite():
                self._count("non_finite")
            case Failed():
                self._count("failed")

    def _stepped(self, event: Stepped) -> None:
        self._steps.record(event.seconds, self._rank | {"level": event.level})
        for part in PARTS:
            self._parts.record(max(0.0, getattr(event, part)), self._rank | {"part": part})
        self._sent.add(event.wire_bytes, self._rank)
        self._plain.add(event.plain_bytes, self._rank)

    def _count(self, kind: str) -> None:
        self._incidents.add(1, self._rank | {"kind": kind})


def _global_meter() -> Meter:
    try:
        from opentelemetry import metrics
    except ModuleNotFoundError as error:
        raise ConfigError("otel: needs opentelemetry-api; install it by pip install 'gradwire[otel]'") from error
    return metrics.get_meter(NAME)
