"""Metrics: a RunState as Prometheus metrics.

`exposition(states)` gives the text of a /metrics page; `Exporter` is a small HTTP server for one rank. Labels are
bounded: the caller names the runs, ranks and links are numbers up to a limit, levels are those that the state keeps.
Needs prometheus-client (`pip install 'gradwire[metrics]'`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from gradwire.events import Event
from gradwire.observe.format import clean
from gradwire.observe.reader import Record
from gradwire.observe.state import RunState
from gradwire.observe.step_split import PARTS

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST
# Ranks and links with lines of their own; a scrape stays below about a megabyte.
MOST_RANKS: Final = 256
MOST_LINKS: Final = 1024

States = Mapping[str, RunState]


class Collector:
    """Turns run states into metric families at every scrape."""

    def __init__(self, states: Callable[[], States]) -> None:
        self._states = states

    def collect(self) -> Iterator[Metric]:
        states = {clean(name, 80): state for name, state in self._states().items()}
        yield from _job(states)
        yield from _levels(states)
        yield from _rounds(states)
        yield from _ranks(states)
        yield from _links(states)
        yield from _transport(states)


def exposition(states: States) -> bytes:
    """Prometheus text of these runs, by name."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collector(lambda: states))
    return generate_latest(registry)


class Exporter:
    """Serves this process' own metrics: a sink for `handle.add_sink`, and an HTTP server (on 127.0.0.1 by default).

    exporter = Exporter(port=9464)
    handle.add_sink(exporter)
    """

    def __init__(self, port: int = 0, address: str = "127.0.0.1", run: str = "training") -> None:
        self._state, self._lock, self._rank = RunState(), threading.Lock(), 0
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Locked(Collector(lambda: {run: self._state}), self._lock))
        self._server: WSGIServer
        self._server, self._thread = start_http_server(port, address, registry)

    @property
    def port(self) -> int:
        return int(self._server.server_port)

    def emit(self, event: Event) -> None:
        with self._lock:
            self._rank = getattr(event, "rank", self._rank)
            self._state.take(Record(self._rank, event.at, event))

    def close(self) -> None:
        """Stop answering and release the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


class _Locked:
    """A scrape sees a state between two events, not in the middle of one."""

    def __init__(self, collector: Collector, lock: threading.Lock) -> None:
        self._collector, self._lock = collector, lock

    def collect(self) -> Iterable[Metric]:
        with self._lock:
            return list(self._collector.collect())


def _gauge(
    name: str, description: str, labels: tuple[str, ...], rows: Iterable[tuple[list[str], float | None]]
) -> Metric:
    family = GaugeMetricFamily(name, description, labels=labels)
    for values, number in rows:
        if number is not None:
            family.add_metric(values, number)
    return family


def _counter(name: str, description: str, labels: tuple[str, ...], rows: Iterable[tuple[list[str], float]]) -> Metric:
    family = CounterMetricFamily(name, description, labels=labels)
    for values, number in rows:
        family.add_metric(values, number)
    return family


def _job(states: States) -> Iterator[Metric]:
    run, each = ("run",), states.items()
    yield _gauge("gradwire_world_size", "Ranks of the job.", run, (([n], s.world_size) for n, s in each))
    yield _counter("gradwire_steps", "Steps synchronised.", run, (([n], s.steps) for n, s in each))
    yield _counter("gradwire_step_seconds", "Time spent in steps.", run, (([n], s.spread.total) for n, s in each))
    rows = (([n, part], s.parts[part]) for n, s in each for part in PARTS)
    description = "Time spent in parts of steps: compute, encode, wire, wait."
    yield _counter("gradwire_step_part_seconds", description, ("run", "part"), rows)
    quantiles = ((([n, f"{q:g}"]), s.spread.quantile(q)) for n, s in each for q in (0.5, 0.9, 0.99) if s.steps)
    yield _gauge("gradwire_step_duration_seconds", "Step time by quantile.", ("run", "quantile"), quantiles)
    sensed = [(n, s.sensed) for n, s in each if s.sensed is not None]
    description = "Delivery rate of the group."
    yield _gauge("gradwire_bandwidth_bytes_per_second", description, run, (([n], s.bandwidth) for n, s in sensed))
    yield _gauge("gradwire_rtt_seconds", "Least round trip of the group.", run, (([n], s.rtprop) for n, s in sensed))
    yield _gauge("gradwire_queueing_seconds", "Time in queues.", run, (([n], s.queueing) for n, s in sensed))
    description = "Residual energy relative to a fresh gradient's."
    yield _gauge("gradwire_residual_ratio", description, run, (([n], s.residual) for n, s in sensed))
    description = "Step of plain DDP as the cost model predicts it."
    yield _gauge(
        "gradwire_predicted_plain_step_seconds", description, run, (([n], s.predicted_plain) for n, s in sensed)
    )
    yield _gauge("gradwire_accuracy_ratio", "Last noted accuracy.", run, (([n], s.noted("accuracy")) for n, s in each))
    yield _gauge("gradwire_loss", "Last noted loss.", run, (([n], s.noted("loss")) for n, s in each))


def _levels(states: States) -> Iterator[Metric]:
    each = states.items()
    description = "The current level."
    yield _gauge(
        "gradwire_level_info",
        description,
        ("run", "level"),
        (([n, clean(s.level, 60)], 1.0) for n, s in each if s.level),
    )
    rows = (([n, clean(k, 60)], count) for n, s in each for k, count in s.level_steps.items())
    yield _counter("gradwire_level_steps", "Steps at each level.", ("run", "level"), rows)
    yield _counter("gradwire_level_changes", "Changes of level.", ("run",), (([n], s.changes) for n, s in each))
    yield _counter("gradwire_plans", "Plans used.", ("run",), (([n], s.plans) for n, s in each))
    rows = (([n, clean(k, 60)], count) for n, s in each for k, count in s.faults.items())
    yield _counter("gradwire_incidents", "Faults and warnings by kind.", ("run", "kind"), rows)
    description = "Times the accuracy guard reduced compression because it harmed training."
    yield _counter("gradwire_guard_acts", description, ("run",), (([n], s.guard.count) for n, s in each))
    yield _counter("gradwire_dropped_events", "Events not recorded.", ("run",), (([n], s.dropped) for n, s in each))


def _rounds(states: States) -> Iterator[Metric]:
    """Local steps."""
    run, used = ("run",), [(n, s.rounds) for n, s in states.items() if s.rounds.count]
    last = [(n, rounds.last) for n, rounds in used if rounds.last is not None]
    yield _counter("gradwire_outer_steps", "Outer steps of local steps.", run, (([n], r.count) for n, r in used))
    description = "Time that training waited for outer exchanges."
    yield _counter("gradwire_outer_wait_seconds", description, run, (([n], r.waited) for n, r in used))
    description = "Local steps between two outer steps of a weight."
    by_count = (([n], e.sync_every) for n, e in last if not e.sync_seconds)
    yield _gauge("gradwire_sync_every_steps", description, run, by_count)
    timed = [(n, r, r.last) for n, r in used if r.last is not None and r.last.sync_seconds]
    description = "Seconds between two outer steps of a weight, where rounds end by time."
    yield _gauge("gradwire_sync_seconds", description, run, (([n], e.sync_seconds) for n, _, e in timed))
    description = "Time that the lowest rank stood still for slower ranks, where rounds end by time."
    yield _counter("gradwire_rank_wait_seconds", description, run, (([n], r.rank_wait) for n, r, _ in timed))
    description = "Steps of a rank in the last round, where rounds end by time."
    rows = (([n, str(rank)], steps) for n, _, e in timed for rank, steps in enumerate(e.rank_steps[:MOST_RANKS]))
    yield _gauge("gradwire_round_steps", description, ("run", "rank"), rows)
    description = "Mean cosine between the pseudo-gradients of two ranks."
    yield _gauge("gradwire_alignment_ratio", description, run, (([n], e.alignment) for n, e in last))
    description = "Norm of a typical rank's pseudo-gradient."
    yield _gauge("gradwire_pseudo_gradient_norm", description, run, (([n], e.norm) for n, e in last))
    description = "Norm of the change of the global weights."
    yield _gauge("gradwire_outer_step_norm", description, run, (([n], e.outer_norm) for n, e in last))


def _ranks(states: States) -> Iterator[Metric]:
    labels = ("run", "rank")
    shown = [(n, rank, s.ranks[rank]) for n, s in states.items() for rank in sorted(s.ranks)[:MOST_RANKS]]
    for name, description in (
        ("wire_bytes", "Bytes sent for gradients."),
        ("plain_bytes", "Bytes that plain DDP would have sent."),
        ("gradient_bytes", "Raw gradient synchronised."),
    ):
        yield _counter(f"gradwire_{name}", description, labels, (([n, str(r)], getattr(k, name)) for n, r, k in shown))
    rows = (([n, str(r)], k.last.seconds) for n, r, k in shown if k.last is not None)
    yield _gauge("gradwire_rank_step_seconds", "Last step of each rank.", labels, rows)


def _links(states: States) -> Iterator[Metric]:
    labels = ("run", "source", "destination")
    shown = [(n, s.links[key]) for n, s in states.items() for key in sorted(s.links)[:MOST_LINKS]]
    for field, name, description in (
        ("rate", "gradwire_link_bytes_per_second", "Delivery rate of a link."),
        ("rtt", "gradwire_link_rtt_seconds", "Round trip of a link."),
        ("loss", "gradwire_link_loss_ratio", "Share of packets lost on a link."),
    ):
        rows = (([n, str(k.source), str(k.destination)], getattr(k, field)) for n, k in shown)
        yield _gauge(name, description, labels, rows)


def _transport(states: States) -> Iterator[Metric]:
    each = states.items()
    for field, description in (
        ("nbytes", "Bytes received over gradwire's transport."),
        ("missing", "Bytes that were lost and not retransmitted."),
        ("returned", "Bytes of gradient returned to residuals."),
        ("retransmitted", "Bytes retransmitted."),
    ):
        name = "received_bytes" if field == "nbytes" else f"{field}_bytes"
        yield _counter(
            f"gradwire_transport_{name}", description, ("run",), (([n], getattr(s.transport, field)) for n, s in each)
        )
    rows = (([n, clean(k, 60)], count) for n, s in each for k, count in s.transport.closes.items())
    yield _counter("gradwire_transport_closes", "How transfers ended.", ("run", "reason"), rows)
