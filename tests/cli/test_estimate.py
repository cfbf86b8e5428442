"""`gradwire estimate`: a table that fits a terminal, JSON, a verdict, and errors that name the option."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from gradwire.cli.estimate import verdict
from gradwire.cli.main import cli
from gradwire.errors import ConfigError
from gradwire.simulate.estimate import Estimate

JOB = {"--params": "2M", "--step": "40ms", "--rate": "50mbit", "--rtt": "20ms", "--ranks": "4"}


def invoke(*more: str, **changed: str) -> Result:
    options = JOB | {f"--{name}": value for name, value in changed.items()}
    words = [word for pair in options.items() for word in pair]
    return CliRunner().invoke(cli, ["estimate", *words, *more])


def test_the_table_fits_eighty_columns_and_a_verdict_follows() -> None:
    done = invoke()
    assert done.exit_code == 0
    lines = done.output.splitlines()
    table = [line for line in lines if line.startswith(("off", "int", "topk", "fp16"))]
    assert len(table) == 15
    assert all(len(line) <= 80 and "…" not in line for line in table)
    assert "(auto)" in done.output
    assert "Plain DDP takes" in lines[-1]
    assert "gradwire.attach(model) would use int4" in lines[-1]


def test_json_has_every_option_with_its_speed_up() -> None:
    found = json.loads(invoke("--json").output)
    plain = found["options"][0]
    assert (plain["level"], plain["transport"], plain["speed_up"], plain["to_accuracy"]) == ("off", "group", 1.0, 1.0)
    assert found["auto"]["level"] == "int4"
    assert max(one["speed_up"] for one in found["options"]) > 4


@pytest.mark.parametrize(
    ("setting", "value"),
    [("params", "many"), ("params", "0"), ("step", "0"), ("rate", "5furlong"), ("rtt", "-5ms"), ("loss", "120%"),
     ("loss", "100%"), ("ranks", "1"), ("bucket-mb", "0")],
)  # fmt: skip
def test_a_wrong_value_is_named_with_its_option(setting: str, value: str) -> None:
    error = invoke(**{setting: value}).exception
    assert isinstance(error, ConfigError)
    assert str(error).startswith(("delay" if setting == "rtt" else setting) + ":")


def test_the_verdict_says_when_gradwire_would_not_help() -> None:
    plain = Estimate("off", "group", 1, 0.101, 1e6, 1.0)
    text = verdict([plain, Estimate("int4", "group", 1, 0.1, 1e5, 1.02)], 0.1)
    assert "would hardly help" in text
    assert "local steps" not in text


def test_the_verdict_names_local_steps_where_they_are_clearly_faster() -> None:
    plain = Estimate("off", "group", 1, 2.0, 1e8, 1.0)
    options = [plain, Estimate("int4", "tcp", 1, 0.5, 1e7, 1.02), Estimate("int8", "tcp", 20, 0.12, 1e6, 1.3)]
    text = verdict(options, 0.1)
    assert "gradwire's TCP" in text
    assert "sync_every=20" in text
    assert "about 30% more steps" in text
