"""Suggestions for mistyped words, and the files that options name."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from gradwire.cli.output import check_writable, write
from gradwire.cli.suggesting_group import SuggestingGroup
from gradwire.errors import ConfigError
from gradwire.suggest import did_you_mean, nearest

KNOWN = ("watch", "report", "replay", "doctor")


@pytest.mark.parametrize(("typed", "meant"), [("wach", "watch"), ("reports", "report"), ("repaly", "replay")])
def test_the_most_similar_word_is_suggested(typed: str, meant: str) -> None:
    assert nearest(typed, KNOWN) == meant
    assert did_you_mean(typed, KNOWN) == f"did you mean {meant!r}? "


def test_nothing_is_suggested_where_no_word_is_similar() -> None:
    assert nearest("xyz", KNOWN) == ""
    assert did_you_mean("xyz", KNOWN) == ""
    assert did_you_mean("watch", ()) == ""
    assert nearest("wat", KNOWN, alike=0.9) == ""


def test_a_word_of_another_type_is_compared_as_text() -> None:
    assert nearest(100, ("100", "200")) == "100"


def test_a_group_of_commands_suggests_the_one_that_was_meant() -> None:
    @click.group(cls=SuggestingGroup)
    def tool() -> None: ...

    @tool.command()
    def watch() -> None:
        click.echo("watched")

    assert CliRunner().invoke(tool, ["watch"]).output == "watched\n"
    mistyped = CliRunner().invoke(tool, ["wacth"])
    assert mistyped.exit_code == 2
    assert "there is no command 'wacth'; did you mean 'watch'? commands are watch" in mistyped.output
    assert CliRunner().invoke(tool, ["--no-such-option"]).exit_code == 2


def test_an_output_file_is_checked_before_the_run_without_creating_it(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    check_writable(path, "--json")
    assert not path.exists()
    path.write_text("kept")
    check_writable(path, "--json")
    assert path.read_text() == "kept"
    for wrong in (tmp_path, tmp_path / "missing" / "result.json", path / "below-a-file.json"):
        with pytest.raises(ConfigError, match="--json: cannot write"):
            check_writable(wrong, "--json")


def test_an_output_file_that_cannot_be_written_names_its_option_and_the_reason(tmp_path: Path) -> None:
    write(tmp_path / "result.txt", "größer", "--output")
    assert (tmp_path / "result.txt").read_bytes() == "größer".encode()
    with pytest.raises(ConfigError, match=r"--output: cannot write .* \(No such file or directory\)"):
        write(tmp_path / "missing" / "result.txt", "", "--output")
