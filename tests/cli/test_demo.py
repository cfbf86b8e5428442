"""The demo: wrong settings are reported at once; a short run trains all three ways on the included digits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from gradwire.cli.demo import demo
from gradwire.demo import screen
from gradwire.demo.story import Halves, bars, failing_line
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
def test_a_short_run_compares_all_on_the_shipped_digits(tmp_path: Path) -> None:
    out = ["--out", str(tmp_path)]
    done = CliRunner().invoke(demo, ["--data", "digits", "--hosts", "2", "--steps", "20", "--json", *out])
    assert done.exit_code == 0, done.output
    plain, peer, ours = json.loads(done.stdout)
    assert [run["name"] for run in (plain, peer, ours)] == ["plain DDP", "PowerSGD", "gradwire"]
    assert all(run["identical"] for run in (plain, peer, ours))
    assert ours["wire_bytes"] < plain["wire_bytes"]
    assert peer["wire_bytes"] < plain["wire_bytes"]
    assert ours["reasons"]
    page = (tmp_path / "report.html").read_text()
    assert "plain-DDP" in page
    assert "Accuracy over time" in page
    recorded, _ = fold(tmp_path / "gradwire")
    assert recorded.world_size == 2
    assert recorded.ended
    assert max(note.noted.accuracy or 0.0 for note in recorded.notes) == pytest.approx(ours["accuracy"])


def halves(*reports: tuple[int, float]) -> tuple[Halves, list[bool]]:
    run = Halves()
    return run, [run.take(step, 100, seconds, 1.0) for step, seconds in reports]


def test_the_network_changes_once_at_half_of_the_steps() -> None:
    run, turned = halves((5, 1.0), (45, 9.0), (50, 10.0), (55, 15.0), (100, 60.0))
    assert turned == [False, False, True, False, False]
    assert (run.before, run.after, run.seconds) == (10.0, 50.0, 60.0)
    assert halves((45, 9.0), (55, 11.0))[1] == [False, True], "also if no report comes at the half itself"


def test_the_picture_has_one_scale_for_all_runs() -> None:
    slow, _ = halves((50, 10.0), (100, 60.0))
    fast, _ = halves((50, 10.0), (100, 15.0))
    (_, before, after), (_, same, shorter) = bars({"slow": slow, "fast": fast}, 60)
    assert (len(before), len(after)) == (10, 50)
    assert (len(same), len(shorter)) == (10, 5)
    assert bars({"none": Halves()}, 60) == [("none", "", "")]


def test_a_busy_machine_a_late_lab_and_a_missing_lab_are_said() -> None:
    assert screen.doubts("", [], loopback=False) == []
    busy, late, paced = screen.doubts("other programs used 1.1 of 2 cores", ["9 % late"], loopback=True)
    assert "1.1 of 2 cores" in busy
    assert "9 % late" in late
    assert "not a measurement" in paced


def test_the_demos_network_has_a_link_for_each_host_and_says_what_happens() -> None:
    network = failing_line(3)
    assert len(network.links) == 6
    assert "half-way" in network.about
