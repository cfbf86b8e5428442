"""Replay: every view of a recording, at any speed; Parquet tables."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from gradwire.cli.main import cli
from gradwire.cli.replay import paced
from gradwire.errors import ConfigError
from gradwire.events import Ended, Stepped
from gradwire.observe.reader import Record
from tests.fake_time import FakeTime
from tests.observe.recordings import fold, small


def test_json_gives_every_record(tmp_path: Path) -> None:
    folder = small(tmp_path)
    _, records = fold(folder)
    lines = CliRunner().invoke(cli, ["replay", "--view", "json", str(folder)]).output.splitlines()
    assert len(lines) == len(records)
    assert json.loads(lines[0])["event"] == "opened"
    assert json.loads(lines[-1])["rank"] == records[-1].rank


def test_the_log_has_each_decision_once(tmp_path: Path) -> None:
    folder = small(tmp_path)
    state, _ = fold(folder)
    text = CliRunner().invoke(cli, ["replay", "--view", "log", "--speed", "0", str(folder)]).output
    for _, decision in state.decisions:
        assert text.count(f"step {decision.step}: {decision.level}: {decision.reason}") == 1


def test_the_summary_is_the_terminal_view_at_the_end(tmp_path: Path) -> None:
    text = CliRunner().invoke(cli, ["replay", "--view", "summary", str(small(tmp_path))]).output
    assert "ended" in text


def test_damage_is_reported_on_standard_error(tmp_path: Path) -> None:
    folder = small(tmp_path)
    with (folder / "rank00000.0000.jsonl").open("ab") as file:
        file.write(b"half a li")
    result = CliRunner().invoke(cli, ["replay", str(folder)])
    assert result.exit_code == 0
    assert "1 damaged lines were skipped" in result.stderr


def test_the_pace_is_the_recordings_own_times_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeTime()
    monkeypatch.setattr("gradwire.cli.replay.time", clock)
    records = [Record(0, 100.0 + at, Ended(at, 0)) for at in (0.0, 1.0, 5.0)]
    assert list(paced(iter(records), 2.0)) == records
    assert clock.now == pytest.approx(2.5)
    assert list(paced(iter(records), 0)) == records
    assert clock.now == pytest.approx(2.5)


def test_parquet_tables_hold_the_events(tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    folder = small(tmp_path)
    _, records = fold(folder)
    result = CliRunner().invoke(cli, ["replay", "--parquet", str(tmp_path / "tables"), str(folder)])
    assert result.exit_code == 0, result.output
    table = pq.read_table(tmp_path / "tables" / "stepped.parquet")
    stepped = [record for record in records if isinstance(record.event, Stepped)]
    assert table.column("wire_bytes").to_pylist() == [record.event.wire_bytes for record in stepped]
    assert table.column("rank").to_pylist() == [record.rank for record in stepped]
    assert str(table.schema.field("residual").type) == "double"
    links = pq.read_table(tmp_path / "tables" / "links_sensed.parquet")
    assert json.loads(links.column("links")[0].as_py())[0]["source"] == 0


def test_tables_that_cannot_be_written_are_a_mistake_that_names_the_place(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    folder = small(tmp_path)
    (tmp_path / "file").touch()
    done = CliRunner().invoke(cli, ["replay", "--parquet", str(tmp_path / "file"), str(folder)])
    assert isinstance(done.exception, ConfigError)
    assert f"replay --parquet: cannot write into {tmp_path / 'file'}" in str(done.exception)
