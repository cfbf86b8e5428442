"""Prometheus metrics: names by convention, bounded labels, values of the run state; the Grafana dashboard uses them."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path

import pytest

from gradwire.events import Attached, LinkSample, LinksSensed, Stepped
from gradwire.observe.reader import Record
from gradwire.observe.state import RunState
from tests.observe.recordings import fold, small

pytest.importorskip("prometheus_client")
from prometheus_client.parser import text_string_to_metric_families

from gradwire.observe.metrics import MOST_LINKS, Exporter, exposition

GRAFANA = Path(__file__).parents[2] / "docs/grafana/gradwire.json"


def samples(text: str) -> dict[tuple[str, str], float]:
    families = text_string_to_metric_families(text)
    return {(s.name, str(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


def test_values_are_those_of_the_run_state(tmp_path: Path) -> None:
    state, _ = fold(small(tmp_path))
    text = exposition({"small": state}).decode()
    found = samples(text)
    assert found["gradwire_steps_total", "[('run', 'small')]"] == state.steps
    sent = sum(value for (name, _), value in found.items() if name == "gradwire_wire_bytes_total")
    assert sent == state.wire_bytes
    assert text.count("# HELP") == text.count("# TYPE")
    for name in {name for name, _ in found}:
        assert re.fullmatch(r"gradwire_[a-z_]+", name)


def test_two_runs_share_their_families(tmp_path: Path) -> None:
    state, _ = fold(small(tmp_path))
    text = exposition({"a": state, "b": state}).decode()
    assert text.count("# TYPE gradwire_steps_total counter") == 1
    assert 'gradwire_steps_total{run="b"}' in text


def test_labels_are_bounded_and_hostile_names_are_escaped() -> None:
    state = RunState()
    links = tuple(LinkSample(source, 0, 1.0) for source in range(3 * MOST_LINKS))
    state.take(Record(0, 1.0, LinksSensed(1.0, 0, links)))
    for step in range(500):
        state.take(Record(0, 1.0, Stepped(1.0, step, 0.1, 0.1, 0.0, 0.0, 0.0, 1, 1, 1, f'x"{step}\n')))
    found = samples(exposition({'evil"} 1\nfake 2': state}).decode())
    assert sum(name == "gradwire_link_bytes_per_second" for name, _ in found) == MOST_LINKS
    assert sum(name == "gradwire_level_steps_total" for name, _ in found) <= 64
    assert not any(name == "fake" for name, _ in found)


def test_an_exporter_serves_its_events_and_releases_its_port() -> None:
    exporter = Exporter()
    try:
        exporter.emit(Attached(1.0, 3, 4, 10, {}))
        exporter.emit(Stepped(2.0, 1, 0.5, 0.5, 0.0, 0.0, 0.0, 8, 4, 12, "int8"))
        with urllib.request.urlopen(f"http://127.0.0.1:{exporter.port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
    finally:
        port = exporter.port
        exporter.close()
    assert 'gradwire_wire_bytes_total{rank="3",run="training"} 4.0' in text
    again = Exporter(port)
    again.close()


def test_the_grafana_dashboard_asks_for_metrics_that_exist(tmp_path: Path) -> None:
    state, _ = fold(small(tmp_path))
    there = {name for name, _ in samples(exposition({"small": state}).decode())}
    there |= {"gradwire_incidents_total"}  # a run without incidents has no line for them
    panels = json.loads(GRAFANA.read_text())["panels"]
    asked = {
        name for panel in panels for query in panel["targets"] for name in re.findall(r"gradwire_\w+", query["expr"])
    }
    assert len(panels) > 8
    assert asked <= there
