"""The demo: wrong settings are named at once; a short run trains both ways on the shipped digits."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from gradwire.cli.demo import demo
from gradwire.errors import ConfigError


def test_a_wrong_level_is_named_before_anything_runs() -> None:
    done = CliRunner().invoke(demo, ["--level", "int9"])
    assert isinstance(done.exception, ConfigError)
    assert "'int9'" in str(done.exception)


@pytest.mark.slow
def test_a_short_run_compares_both_on_the_shipped_digits() -> None:
    done = CliRunner().invoke(demo, ["--data", "digits", "--hosts", "2", "--steps", "20", "--json"])
    assert done.exit_code == 0, done.output
    plain, ours = json.loads(done.stdout)
    assert plain["identical"]
    assert ours["identical"]
    assert ours["wire_bytes"] < plain["wire_bytes"]
    assert ours["reasons"]
