"""Mistyped commands and missing files: one message with the fix, exit code 2."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from gradwire.cli import bench
from gradwire.cli.main import cli
from gradwire.cli.watch import follow
from gradwire.errors import ConfigError
from gradwire.lab.emulator import NoPrivilegesError, congestion_controls
from gradwire.observe.follow import FollowedRun
from tests.fake_time import FakeTime
from tests.observe.recordings import small

VIEWS = [["watch"], ["watch", "--once"], ["watch", "--once", "--json"], ["report"], ["replay"], ["replay", "--json"]]


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments))


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GRADWIRE_RECORD", raising=False)


@pytest.mark.parametrize("view", VIEWS, ids=" ".join)
def test_an_unreadable_directory_is_named(view: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(self: Path) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "iterdir", denied)
    error = invoke(*view, str(tmp_path)).exception
    assert isinstance(error, ConfigError)
    assert str(error) == f"{tmp_path}: Permission denied; name a readable directory"


@pytest.mark.parametrize("view", VIEWS, ids=" ".join)
def test_an_empty_directory_is_named(view: list[str], tmp_path: Path) -> None:
    error = invoke(*view, str(tmp_path)).exception
    assert isinstance(error, ConfigError)
    assert f"{tmp_path} contains no recording" in str(error)


@pytest.mark.parametrize("view", VIEWS, ids=" ".join)
def test_a_recording_without_an_event_is_named(view: list[str], tmp_path: Path) -> None:
    (tmp_path / "rank00000.0000.jsonl").touch()
    error = invoke(*view, str(tmp_path)).exception
    assert isinstance(error, ConfigError)
    assert "no event can be read" in str(error)


def test_the_newest_run_is_found_beside_unreadable_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(tmp_path / "runs")
    (tmp_path / "runs" / "theirs").mkdir()
    original = Path.iterdir

    def iterdir(self: Path) -> object:
        if self.name == "theirs":
            raise PermissionError(13, "Permission denied", str(self))
        return original(self)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    assert "4 ranks" in invoke("watch", "--once").output


def test_watch_waits_for_a_recording_that_is_not_there_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float] = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            small(tmp_path)

    monkeypatch.setattr("gradwire.cli.watch.time", FakeTime(slept=sleep))
    following = FollowedRun(tmp_path / "small")
    follow(Console(file=io.StringIO(), force_terminal=True), following)
    assert len(looks) >= 3
    assert following.state.ended


def test_a_replay_without_a_terminal_prints_how_the_run_ended(tmp_path: Path) -> None:
    folder = str(small(tmp_path))
    assert invoke("replay", folder).stdout == invoke("replay", "--view", "summary", folder).stdout != ""


def test_json_goes_to_standard_output_alone(tmp_path: Path) -> None:
    folder = str(small(tmp_path))
    report, now = invoke("report", "--json", folder), invoke("watch", "--once", "--json", folder)
    assert json.loads(report.stdout)["runs"][0]["world_size"] == 4
    assert json.loads(now.stdout)["runs"][0]["steps"] == json.loads(report.stdout)["runs"][0]["steps"] > 0
    assert not Path("report.html").exists()
    both = invoke("report", "--json", "-o", "page.md", folder)
    assert json.loads(both.stdout)
    assert Path("page.md").exists()
    lines = invoke("replay", "--json", folder).stdout.splitlines()
    assert json.loads(lines[0])["event"] == "opened"


def test_json_of_a_run_that_is_followed_is_refused(tmp_path: Path) -> None:
    error = invoke("watch", "--json", str(small(tmp_path))).exception
    assert isinstance(error, ConfigError)
    assert "replay --json" in str(error)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [(["wach"], "watch"), (["reprot"], "report"), (["lab", "rnu"], "run"), (["dahsboard"], "dashboard")],
)
def test_a_mistyped_command_is_reported_with_the_intended_one(typed: list[str], meant: str) -> None:
    done = invoke(*typed)
    assert done.exit_code == 2
    assert f"did you mean '{meant}'?" in done.output


def test_a_claim_without_privileges_is_refused_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refused:
        def __init__(self, *arguments: object, **settings: object) -> None:
            raise NoPrivilegesError("lab: this machine does not let us make a network (unshare: EPERM); run as root")

    monkeypatch.setattr(bench, "Lab", Refused)
    monkeypatch.setattr(subprocess, "run", lambda *arguments, **settings: pytest.fail("a case was started"))
    error = invoke("bench", "harmless").exception
    assert isinstance(error, ConfigError)
    assert str(error) == (
        "bench harmless: this user cannot create a network (unshare: EPERM); run as root: sudo gradwire bench harmless"
    )


def test_the_machines_congestion_controls_are_those_that_the_kernel_has() -> None:
    known = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()
    assert sorted(known) == congestion_controls()


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_gradwire_run_explains_itself(option: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gradwire.run", option], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: torchrun")
    assert "GRADWIRE_CONFIG" in done.stdout
