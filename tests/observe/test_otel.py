"""OpenTelemetry: events become metrics with the conventions' units and few attributes."""

from __future__ import annotations

from typing import Any

from gradwire.events import Attached, Decided, Failed, Faulted, Noted, Sensed, Stepped
from tests.presence import needs

needs("opentelemetry.sdk", "dev")

from opentelemetry.sdk.metrics import MeterProvider  # noqa: E402
from opentelemetry.sdk.metrics.export import InMemoryMetricReader  # noqa: E402

from gradwire.observe.otel import Metrics  # noqa: E402


def collected(*events: Any) -> dict[str, list[tuple[dict[str, Any], Any]]]:
    """The points of every metric: attributes and value, of a histogram its sum."""
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    sink = Metrics(provider.get_meter("test"))
    for event in events:
        sink.emit(event)
    data = reader.get_metrics_data()
    provider.shutdown()
    found: dict[str, list[tuple[dict[str, Any], Any]]] = {}
    for resource in data.resource_metrics if data else ():
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                points = metric.data.data_points
                found[metric.name] = [
                    (dict(p.attributes), getattr(p, "sum", getattr(p, "value", None))) for p in points
                ]
    return found


def test_a_step_is_its_duration_its_parts_and_its_bytes() -> None:
    step = Stepped(1.0, 1, 0.5, 0.25, 0.125, 0.125, 0.0, 100, 40, 150, "int8")
    found = collected(Attached(0.0, 3, 4, 10, {}), step, step)
    assert found["gradwire.step.duration"] == [({"rank": 3, "level": "int8"}, 1.0)]
    assert {point["part"]: value for point, value in found["gradwire.step.part"]} == {
        "compute": 0.5,
        "encode": 0.25,
        "wire": 0.25,
        "wait": 0.0,
    }
    assert found["gradwire.sent"] == [({"rank": 3}, 80)]
    assert found["gradwire.plain"] == [({"rank": 3}, 300)]


def test_the_network_decisions_and_incidents_are_counted() -> None:
    sensed = Sensed(1.0, 1, 0.02, 1e6, 0.0, 0.0, 0.0, 0.5, 0.0, 0.0, 0.0, 0.0)
    decided = [Decided(1.0, 1, bucket, "int8", "reason", 1) for bucket in (0, 1)]
    faults = [Faulted(1.0, 1, "guard", "x"), Faulted(1.0, 1, "from a later version", "x"), Failed(1.0, 1, "x")]
    found = collected(sensed, *decided, *faults, Noted(1.0, 1, 2.5))
    assert found["gradwire.network.rate"][0][1] == 1e6
    assert found["gradwire.network.round_trip"][0][1] == 0.02
    assert found["gradwire.decisions"] == [({"level": "int8"}, 1)]
    assert {point["kind"] for point, _ in found["gradwire.incidents"]} == {"guard", "other", "failed"}
    assert found["gradwire.loss"][0][1] == 2.5
