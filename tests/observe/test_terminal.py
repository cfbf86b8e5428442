"""The terminal view: correct values, within 80 columns, and no control characters from hostile files."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from gradwire.cli.main import cli
from gradwire.errors import ConfigError
from gradwire.events import Decided, Failed, Opened
from gradwire.observe.files import segment_path
from gradwire.observe.follow import FollowedRun
from gradwire.observe.format import clean, count, percent, rate, seconds, span, spark
from gradwire.observe.reader import Record
from gradwire.observe.state import RunState
from gradwire.observe.terminal import draw
from tests.observe.recordings import fold, small


def shown(state: RunState, width: int = 80, *, color: bool = False) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=color, color_system="standard" if color else None)
    console.print(draw(state, width))
    return out.getvalue()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_run_fits_the_width_and_says_what_matters(tmp_path: Path, width: int) -> None:
    state, _ = fold(small(tmp_path))
    text = shown(state, width)
    assert max(map(len, text.splitlines())) <= width
    assert f"step {state.step}" in text
    assert all(part in text for part in ("compute", "encode", "wire", "wait"))
    assert rate(state.sensed.bandwidth if state.sensed else None) in text
    reasons = re.sub(r"\s+", " ", text)
    for _, decision in list(state.decisions)[-5:]:
        assert decision.reason[:20] in reasons
    assert "predicted" in text


def test_colour_is_a_matter_of_the_console(tmp_path: Path) -> None:
    state, _ = fold(small(tmp_path))
    assert "\x1b[" in shown(state, color=True)
    assert "\x1b[" not in shown(state)


def test_before_the_first_event_and_the_first_step_it_says_what_it_waits_for() -> None:
    state = RunState()
    assert "waiting for the first event" in shown(state)
    state.take(Record(0, 1.0, Opened(1.0, "gradwire-events", 1, 0, 4, 1.0)))
    assert "waiting for the first step" in shown(state)


def test_escapes_in_strings_do_not_reach_the_terminal() -> None:
    state = RunState()
    evil = "\x1b[2J\x07[red]bold\u202e\nnext"
    state.take(Record(0, 1.0, Opened(1.0, "gradwire-events", 1, 0, 1, 1.0, run=evil)))
    state.take(Record(0, 1.0, Decided(1.0, 1, 0, evil, evil * 50, 1)))
    state.take(Record(0, 1.0, Failed(1.0, 1, evil)))
    text = shown(state)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "[red]bold" in text, "markup is text here"
    assert max(map(len, text.splitlines())) <= 80


def test_numbers_and_durations_are_formatted() -> None:
    assert spark([]) == ""
    assert spark([1.0, 1.001]) == "▄▄"
    assert spark([0, 1, 2, 3]) == "▁▃▆█"
    assert spark([0.0, 0.0]) == "▄▄"
    assert spark([-1.7e308, 0.0, 1.7e308]) == "▁▅█"
    assert spark([0.0, float("inf")]) == "▁█"
    assert clean("a\x1b[0m\tb", 10) == "a[0m b"
    assert clean("x" * 20, 5) == "xxxx…"
    assert (span(2.41), span(40), span(600), span(7500)) == ("2.4 s", "40 s", "10 min", "2 h 05 min")
    assert (percent(0.0123), percent(0.5), percent(None)) == ("1.2 %", "50 %", "-")
    assert (count(5), count(53_000), count(11_173_962)) == ("5", "53 k", "11.2 M")
    assert (rate(None), seconds(0.0125)) == ("-", "12.5 ms")


def test_following_shows_what_was_written_since(tmp_path: Path) -> None:
    folder = small(tmp_path)
    path = segment_path(folder, 0, 0)
    body = path.read_bytes()
    half = body.index(b"\n", len(body) // 2) + 1
    path.write_bytes(body[:half])
    following = FollowedRun(folder)
    following.poll()
    before = following.state.step
    with path.open("ab") as file:
        file.write(body[half:])
    following.poll()
    assert following.state.step > before > 0


def test_watch_prints_once_with_once_or_without_a_terminal(tmp_path: Path) -> None:
    folder = str(small(tmp_path))
    runner = CliRunner()
    once = runner.invoke(cli, ["watch", "--once", folder])
    assert "decisions" in once.output
    assert runner.invoke(cli, ["watch", folder]).output == once.output


def test_watch_takes_a_file_of_a_recording_for_the_recording(tmp_path: Path) -> None:
    folder = small(tmp_path)
    by_file, by_folder = (
        CliRunner().invoke(cli, ["watch", "--once", str(path)]) for path in (segment_path(folder, 0, 0), folder)
    )
    assert "4 ranks" in by_file.stdout
    assert by_file.stdout == by_folder.stdout


@pytest.mark.parametrize(("body", "complaint"), [(b"", "empty"), (b"junk\n", "not a gradwire recording")])
def test_watch_once_says_what_it_cannot_read(tmp_path: Path, body: bytes, complaint: str) -> None:
    segment_path(tmp_path, 9, 0).write_bytes(body)
    nothing = CliRunner().invoke(cli, ["watch", "--once", str(tmp_path)])
    assert isinstance(nothing.exception, ConfigError)
    assert complaint in str(nothing.exception)


def test_watch_once_shows_the_rest_of_a_damaged_recording(tmp_path: Path) -> None:
    folder = small(tmp_path)
    segment_path(folder, 9, 0).write_bytes(b"junk\n")
    result = CliRunner().invoke(cli, ["watch", "--once", str(folder)])
    assert "4 ranks" in result.stdout
    assert "rank00009" in result.stderr


def test_watch_finds_the_newest_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GRADWIRE_RECORD", raising=False)
    result = CliRunner().invoke(cli, ["watch", "--once"])
    assert "no recording in runs/" in str(result.exception)
    small(tmp_path / "runs" / "demo")
    assert "4 ranks" in CliRunner().invoke(cli, ["watch", "--once"]).output
