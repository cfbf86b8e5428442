"""Reports: numbers of the run state, a page without external requests, escaped strings."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner

from gradwire.cli.main import cli
from gradwire.errors import ConfigError
from gradwire.observe.plot import Line, line_plot, split_bars, thinned, ticks
from gradwire.observe.report import load, table, to_html, to_json, to_markdown
from gradwire.observe.sample import SampleShape
from tests.observe.recordings import fold, small

EVIL = "<script>alert(1)</script>\"'`|*[x](http://evil)"


class Tags(HTMLParser):
    """Every tag and attribute of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("href", "src", "xlink:href", "action")]
        assert not [name for name, _ in attrs if name.startswith("on")]


def evil_run(folder: Path) -> Path:
    run = small(folder)
    path = run / "rank00000.0000.jsonl"
    line = {"event": "decided", "at": 5001.0, "step": 1, "bucket": 0, "level": EVIL, "reason": EVIL, "version": 99}
    fault = {"event": "faulted", "at": 5002.0, "step": 1, "kind": EVIL, "detail": EVIL}
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n" + json.dumps(fault) + "\n")
    return run


def test_the_json_has_the_run_states_numbers(tmp_path: Path) -> None:
    run = small(tmp_path)
    state, _ = fold(run)
    [facts] = json.loads(to_json(load([run])))["runs"]
    assert facts["steps"] == state.steps
    assert facts["wire_bytes"] == state.wire_bytes
    assert facts["step_quantiles"]["p50"] == pytest.approx(state.spread.quantile(0.5))
    assert len(facts["decisions"]) == len(state.decisions)
    assert sum(facts["levels"].values()) == state.steps


def test_time_to_accuracy_is_the_first_note_that_reached_it(tmp_path: Path) -> None:
    run = small(tmp_path)
    state, _ = fold(run)
    best = max(note.noted.accuracy or 0.0 for note in state.notes)
    [one] = load([run], [best, 1.0])
    assert one.facts.reached[f"{best:g}"] is None or one.facts.reached[f"{best:g}"] == state.reached(best)
    assert one.facts.reached["1"] is None


def test_runs_are_compared_with_the_first(tmp_path: Path) -> None:
    first, second = small(tmp_path / "a"), small(tmp_path / "b", shape=SampleShape(4, 90.0, 8))
    rows = {row[0]: row[1:] for row in table(load([first, second]))}
    assert rows[""] == ["small", "small (2)"]
    assert rows["speed-up over the first run"][0] == "1.00x"


def test_the_page_is_self_contained_and_escapes_what_it_shows(tmp_path: Path) -> None:
    page = to_html(load([evil_run(tmp_path)]))
    tags = Tags()
    tags.feed(page)
    assert "script" not in tags.tags
    assert not {"img", "iframe", "link", "object", "a"} & tags.tags
    assert tags.addresses == []
    assert not re.search(r"url\(|@import", page)
    assert "&lt;script&gt;" in page
    assert "default-src 'none'" in page
    assert page.count("<svg") >= 7


def test_markdown_carries_no_markup_from_a_recording(tmp_path: Path) -> None:
    text = to_markdown(load([evil_run(tmp_path)]))
    assert "<script>" not in text
    assert not re.search(r"(?<!\\)\]\(http", text), "its brackets are escaped"
    assert text.startswith("# gradwire report")


def test_the_command_writes_the_requested_formats(tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    result = CliRunner().invoke(cli, ["report", str(small(tmp_path)), "-o", str(out), "--also", "md", "--also", "json"])
    assert result.exit_code == 0, result.output
    assert {path.suffix for path in tmp_path.glob("page.*")} == {".html", ".md", ".json"}
    wrong = CliRunner().invoke(cli, ["report", str(small(tmp_path)), "-o", "x.pdf"])
    assert isinstance(wrong.exception, ConfigError)
    assert "must end in" in str(wrong.exception)


def test_a_damaged_recording_says_so_on_the_page(tmp_path: Path) -> None:
    run = small(tmp_path)
    with (run / "rank00001.0000.jsonl").open("a") as file:
        file.write("half a line")
    assert "1 damaged lines were skipped" in to_html(load([run]))


def test_plots_survive_what_runs_may_hold() -> None:
    assert "nothing was recorded" in line_plot([], str, str, "x")
    assert "circle" in line_plot([Line("one", [(1.0, 2.0)])], str, str, "x")
    assert "polyline" in line_plot([Line("flat", [(0.0, 2.0), (1.0, 2.0)])], str, str, "x")
    assert "&lt;b&gt;" in line_plot([Line("<b>", [(0.0, 1.0), (1.0, 2.0)])], str, str, "x")
    assert "nothing was recorded" in split_bars([("a", [("x", 0.0)])], str, "x")


def test_thinning_keeps_spikes() -> None:
    points = [(float(i), 100.0 if i == 5_003 else 1.0) for i in range(10_000)]
    kept = thinned(points)
    assert len(kept) < 1000
    assert (5003.0, 100.0) in kept


def test_ticks_are_round() -> None:
    assert ticks(0.0, 1.0, 5) == pytest.approx([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert ticks(0.0, 600.0, 6, (60.0, 120.0)) == pytest.approx([0, 120, 240, 360, 480, 600])
