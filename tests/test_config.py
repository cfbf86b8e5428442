"""Configuration: argument over environment over file over default; mistakes name the field."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from gradwire.config import Config, PlanningConfig, resolve
from gradwire.errors import ConfigError


def test_the_nearer_source_wins(tmp_path: Path) -> None:
    path = tmp_path / "gradwire.toml"
    path.write_text('level = "int4"\n[compress]\nchunk = 2.5\nwarmup = 7\n')
    environment = {"GRADWIRE_CONFIG": str(path), "GRADWIRE_COMPRESS_WARMUP": "9", "GRADWIRE_LEVEL": "bf16"}
    assert resolve(None, environment).compress.chunk == 2.5
    assert resolve(None, environment).compress.warmup == 9
    assert resolve(None, environment).level == "bf16"
    assert resolve("int8", environment).level == "int8"
    assert resolve({"compress": {"warmup": 1}}, environment).compress.warmup == 1
    assert resolve(None, {}) == Config()


def test_a_file_may_be_the_argument(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("[transport]\ntimeout = 5\n")
    assert resolve(path, {}).transport.timeout == 5.0
    assert resolve(str(path), {}).transport.timeout == 5.0


@pytest.mark.parametrize(
    ("given", "environment", "named"),
    [
        ("int9", {}, "level"),
        ({"compress": {"chunk": -1}}, {}, "compress.chunk"),
        ({"compres": {}}, {}, "compres"),
        ({"compress": {"rounding": "up"}}, {}, "compress.rounding"),
        (None, {"GRADWIRE_COMPRESS_CHNK": "1"}, "GRADWIRE_COMPRESS_CHNK"),
        (None, {"GRADWIRE_TRANSPORT_TIMEOUT": "soon"}, "transport.timeout"),
        (None, {"GRADWIRE_TRANSPORT_TIMEOUT": "inf"}, "transport.timeout: inf will not do, it must be a finite"),
        (Config(planning=PlanningConfig(interval=math.inf)), {}, "planning.interval"),
        ("no/such/file.toml", {}, "no/such/file.toml"),
    ],
)
def test_a_mistake_names_its_field(given: object, environment: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=named.replace(".", r"\.")):
        resolve(given, environment)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            {"transport": {"timeout": -1}},
            "transport.timeout: -1 will not do, it must be a number > 0.0; the default is 600.0",
        ),
        (
            {"planning": {"aware": "perhaps"}},
            "planning.aware: 'perhaps' will not do, it must be true or false; the default is ",
        ),
        (
            {"transport": {"kind": "smoke"}},
            "transport.kind: 'smoke' will not do, it must be one of 'group', 'ltp', 'tcp'; the ",
        ),
        ({"transport": {"kin": 1}}, "transport: there is no setting 'kin'; known are timeout, kind, "),
        ({"transports": {}}, "configuration: there is no setting 'transports'; known are level, record, plan, "),
        ({"transport": 5}, "transport: 5 will not do, it must be a table"),
    ],
)
def test_a_mistake_is_told_with_what_would_do(given: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(given, {})
    assert str(caught.value).startswith(told)


@pytest.mark.parametrize("content", [b"level = ", b'level = "\xe9"'])
def test_a_broken_file_is_named(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"broken\.toml is not valid TOML"):
        resolve(path, {})
