"""The demo: wrong settings are reported at once; a short run trains both ways on the included digits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from gradwire.cli.demo import demo
from gradwire.errors import ConfigError
from tests.observe.recordings import fold


def test_a_wrong_level_is_named_before_anything_runs() -> None:
    done = CliRunner().invoke(demo, ["--level", "int9"])
    assert isinstance(done.exception, ConfigError)
    assert "'int9'" in str(done.exception)


def test_unknown_data_is_named_before_anything_runs() -> None:
    done = CliRunner().invoke(demo, ["--data", "nosuch"])
    assert isinstance(done.exception, ConfigError)
    assert "'nosuch'" in str(done.exception)


@pytest.mark.slow
def test_a_short_run_compares_both_on_the_shipped_digits(tmp_path: Path) -> None:
    out = ["--out", str(tmp_path)]
    done = CliRunner().invoke(demo, ["--data", "digits", "--hosts", "2", "--steps", "20", "--json", *out])
    assert done.exit_code == 0, done.output
    plain, ours = json.loads(done.stdout)
    assert plain["identical"]
    assert ours["identical"]
    assert ours["wire_bytes"] < plain["wire_bytes"]
    assert ours["reasons"]
    page = (tmp_path / "report.html").read_text()
    assert "plain-DDP" in page
    assert "Accuracy over time" in page
    recorded, _ = fold(tmp_path / "gradwire")
    assert recorded.world_size == 2
    assert recorded.ended
    assert max(note.noted.accuracy or 0.0 for note in recorded.notes) == pytest.approx(ours["accuracy"])
