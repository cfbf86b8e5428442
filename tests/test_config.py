"""Configuration: argument over environment over file over default; errors name the setting."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest

import gradwire
from gradwire import config
from gradwire.config import Config, PlanningConfig, TransportConfig, resolve
from gradwire.errors import ConfigError
from gradwire.integrations.arguments import (
    check_fragments_used,
    with_fragments,
    with_level,
    with_local_steps,
    with_plan,
    with_record,
    with_round_seconds,
    with_transport,
)
from gradwire.level import Level


def test_argument_overrides_environment_overrides_file(tmp_path: Path) -> None:
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
        (None, {"GRADWIRE_TRANSPORT_TIMEOUT": "inf"}, "transport.timeout: inf is not valid; it must be a finite"),
        (Config(planning=PlanningConfig(interval=math.inf)), {}, "planning.interval"),
        ("no/such/file.toml", {}, "no/such/file.toml"),
    ],
)
def test_an_error_names_its_setting(given: object, environment: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=named.replace(".", r"\.")):
        resolve(given, environment)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"transport": {"timeout": -1}},
            "transport.timeout: -1 is not valid; it must be a number > 0.0; the default is 600.0",
        ),
        (
            {"planning": {"aware": "perhaps"}},
            "planning.aware: 'perhaps' is not valid; it must be true or false; the default is ",
        ),
        (
            {"transport": {"kind": "smoke"}},
            "transport.kind: 'smoke' is not valid; it must be one of 'auto', 'group', 'ltp', 'tcp'; the ",
        ),
        (
            {"transport": {"kin": 1}},
            "transport: there is no setting 'kin'; did you mean 'kind'? known are timeout, kind, ",
        ),
        (
            {"transports": {}},
            "configuration: there is no setting 'transports'; did you mean 'transport'? known are level, lossiest, ",
        ),
        ({"levle": "int8"}, "configuration: there is no setting 'levle'; did you mean 'level'? "),
        (
            {"compress": {"warmup": -1}},
            "compress.warmup: -1 is not valid; it must be a whole number >= 0; the default is 100, and 0 with "
            "a plan or local steps",
        ),
        ({"level": 5}, "level: 5 is not valid; it must be text"),
        ({"level": "atuo"}, "level: 'atuo' in 'atuo' is not a stage; "),
        ({"level": "topkk:0.01"}, "level: 'topkk:0.01' in 'topkk:0.01' is not a stage; did you mean 'topk'? "),
        ({"plan": "loadawre"}, "plan: 'loadawre' is not a planner; did you mean 'loadaware'? "),
        ({"plan": "atuo"}, "plan: 'atuo' is not a planner; did you mean 'auto'? "),
        (
            {"plan": "auto", "planning": {"elastic": True}},
            "planning.elastic: ranks can be lost and rejoin only ",
        ),
        (
            {"plan": "star", "planning": {"max_ranks": 4}},
            "planning.max_ranks: 4 lets ranks join while the job runs, which needs a planner's name in plan",
        ),
        (0.01, "config: 0.01 is not a configuration; give a level as text "),
        (["int8"], "config: ['int8'] is not a configuration; "),
        (Config(level=5), "level: 5 is not valid; it must be text"),  # type: ignore[arg-type]
        (Config(transport=TransportConfig(timeout=-1)), "transport.timeout: -1 is not valid; "),
        ({"transport": 5}, "transport: 5 is not valid; it must be a table"),
    ],
)
def test_an_error_says_what_is_allowed(given: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(given, {})
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("GRADWIRE_LEVLE", "GRADWIRE_LEVEL"),
        ("GRADWIRE_TRANPSORT_TIMEOUT", "GRADWIRE_TRANSPORT_TIMEOUT"),
        ("GRADWIRE_IFNAM", "GRADWIRE_IFNAME"),
    ],
)
def test_an_unknown_variable_gets_a_suggestion(variable: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"did you mean '{meant}'"):
        resolve(None, {variable: "1"})


def test_the_cap_comes_from_argument_environment_or_file(tmp_path: Path) -> None:
    path = tmp_path / "gradwire.toml"
    path.write_text('lossiest = "topk:0.03"\n')
    environment = {"GRADWIRE_CONFIG": str(path)}
    assert resolve(None, {}).cap is None
    assert resolve(None, environment).cap == Level.parse("topk:0.03")
    environment["GRADWIRE_LOSSIEST"] = "int4"
    assert resolve("netsense", environment).cap == Level.parse("int4")
    assert with_level(resolve(None, environment), None, "int8").cap == Level.parse("int8")
    assert with_level(resolve(None, environment), "fp16", "").cap is None, "level and cap are checked together"


def test_local_steps_come_from_argument_environment_or_file(tmp_path: Path) -> None:
    path = tmp_path / "gradwire.toml"
    path.write_text('sync_every = 5\n[outer]\nkind = "average"\n')
    environment = {"GRADWIRE_CONFIG": str(path)}
    assert resolve(None, {}).sync_every == 0
    assert (resolve(None, environment).sync_every, resolve(None, environment).outer.kind) == (5, "average")
    environment |= {"GRADWIRE_SYNC_EVERY": "20", "GRADWIRE_OUTER_MOMENTUM": "0.9"}
    assert (resolve(None, environment).sync_every, resolve(None, environment).outer.momentum) == (20, 0.9)
    changed = with_local_steps(resolve(None, environment), 50, "nesterov")
    assert (changed.sync_every, changed.outer.kind) == (50, "nesterov")
    environment |= {"GRADWIRE_SYNC_EVERY": "auto"}
    assert resolve(None, environment).sync_every == "auto"
    assert with_local_steps(resolve(None, {}), "auto").sync_every == "auto"


def test_rounds_by_time_come_from_argument_environment_or_file(tmp_path: Path) -> None:
    path = tmp_path / "gradwire.toml"
    path.write_text("sync_seconds = 5\nsync_wait = 0.2\n")
    environment = {"GRADWIRE_CONFIG": str(path)}
    config = resolve(None, environment)
    assert (config.sync_seconds, config.sync_wait, config.local_steps) == (5.0, 0.2, "sync_seconds: 5")
    environment |= {"GRADWIRE_SYNC_SECONDS": "30.5", "GRADWIRE_SYNC_WAIT": "0"}
    config = resolve(None, environment)
    assert (config.sync_seconds, config.sync_wait) == (30.5, 0.0)
    assert with_round_seconds(config, 60).sync_seconds == 60.0
    assert with_round_seconds(config, None) is config
    assert with_fragments(config, 4, 50).fragment_sync_delay == 50
    assert (resolve(None, {}).local_steps, resolve({"sync_every": 5}, {}).local_steps) == ("", "sync_every: 5")
    with pytest.raises(ConfigError, match="sync_seconds: True is not valid"):
        with_round_seconds(resolve(None, {}), True)


def test_fragments_come_from_argument_environment_or_file(tmp_path: Path) -> None:
    path = tmp_path / "gradwire.toml"
    path.write_text("sync_every = 20\nnum_fragments = 2\nfragment_progress = 0.5\n")
    config = resolve(None, {"GRADWIRE_CONFIG": str(path), "GRADWIRE_FRAGMENT_SYNC_DELAY": "3"})
    assert (config.num_fragments, config.fragment_sync_delay, config.fragment_progress) == (2, 3, 0.5)
    changed = with_fragments(config, 4, None)
    assert (changed.num_fragments, changed.fragment_sync_delay) == (4, 3)
    with pytest.raises(ConfigError, match="fragment_sync_delay: 3 is too long"):
        with_fragments(config, 10, None)
    with pytest.raises(ConfigError, match="num_fragments: 2 is a setting of local steps"):
        check_fragments_used(resolve({"num_fragments": 2}, {}))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sync_every": 5, "num_fragments": 6}, "num_fragments: 6 is more than sync_every = 5"),
        ({"num_fragments": 0}, "num_fragments: 0 is not valid; it must be a whole number >= 1"),
        ({"sync_every": -1}, "sync_every: -1 is not valid; it must be a whole number >= 0"),
        ({"sync_every": "often"}, "sync_every: 'often' is not valid; it must be a whole number >= 0, or 'auto'"),
        ({"sync_every": "auto", "num_fragments": 2}, "num_fragments: fragments need a fixed number of local steps"),
        ({"sync_every": "auto", "sync_seconds": 5}, "sync_seconds: 5 cannot be combined with sync_every = 'auto'"),
        ({"sync_every": 5, "sync_seconds": 5}, "sync_seconds: 5 cannot be combined with sync_every = 5"),
        ({"sync_seconds": -5}, "sync_seconds: -5 is not valid; it must be a number >= 0"),
        ({"sync_seconds": "often"}, "sync_seconds: 'often' is not valid; it must be a number"),
        ({"sync_seconds": 5, "transport": {"timeout": 5}}, "sync_seconds: 5 is not less than transport.timeout = 5"),
        ({"sync_seconds": 5, "plan": "star"}, "sync_seconds: 5 cannot be combined with plan = 'star'"),
        ({"sync_seconds": 5, "sync_wait": 2}, "sync_wait: 2 is not valid; it must be a number <= 1"),
        (
            {"sync_every": 8, "num_fragments": 2, "plan": "star", "planning": {"elastic": True}},
            "num_fragments: 2 and fragment_sync_delay = 0 cannot be combined with planning.elastic",
        ),
        (
            {"sync_every": 8, "fragment_sync_delay": 1, "plan": "star", "planning": {"elastic": True}},
            "num_fragments: 1 and fragment_sync_delay = 1 cannot be combined with planning.elastic",
        ),
        (
            {"sync_every": 5, "compress": {"momentum": 0.9}},
            "sync_every: 5 cannot be combined with compress.momentum = 0.9",
        ),
        ({"outer": {"kind": "adam"}}, "outer.kind: 'adam' is not valid; it must be one of 'nesterov', 'average'"),
    ],
)
def test_wrong_local_steps_are_named(given: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        resolve(given, {})
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"level": "int8", "lossiest": "int4"},
            "lossiest: 'int4' limits what a controller chooses, but level = 'int8' is fixed; leave lossiest "
            "(GRADWIRE_LOSSIEST) empty, or choose a controller: ",
        ),
        ({"lossiest": "int5"}, "lossiest: 'int5' in 'int5' is not a stage; "),
        ({"lossiest": "auto"}, "lossiest: 'auto' in 'auto' is not a stage; "),
        ({"lossiest": "topk:3"}, "lossiest: topk needs a share between 0 and 1"),
        ({"lossiest": 4}, "lossiest: 4 is not valid; it must be text"),
        (
            {"lossiest": "topk:0.03+int8", "plan": "star"},
            "lossiest: topk:0.03+int8 cannot be summed inside the trees of plan = 'star'; write sharedk:0.03+int8",
        ),
        ({"lossiest": "lowrank:4", "plan": "star"}, "lossiest: lowrank:4 cannot be summed inside "),
    ],
)
def test_a_cap_that_cannot_work_is_refused_with_the_fix(given: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(given, {})
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("cap", ["off", "int4", "sharedk:0.03+int8", "randk:0.1"])
def test_a_plan_takes_caps_that_its_trees_can_sum(cap: str) -> None:
    assert str(resolve({"lossiest": cap, "plan": "star"}, {}).cap) == cap


def test_an_unknown_controller_gets_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="did you mean 'auto'"):
        resolve("atuo", {})


@pytest.mark.parametrize(
    ("change", "value", "named"),
    [
        (with_level, 8, "level: 8 is not valid"),
        (lambda config, value: with_level(config, None, value), 4, "lossiest: 4 is not valid; it must be text, as in "),
        (with_plan, 0, "plan: 0 is not valid"),
        (with_transport, "lpt", "transport: 'lpt' is not a transport; did you mean 'ltp'"),
        (with_record, 5, "record: 5 is not a path"),
        (with_record, True, "record: True is not a path"),
    ],
)
def test_an_argument_of_the_wrong_kind_is_named(change: Any, value: object, named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        change(Config(), value)
    assert str(caught.value).startswith(named)


@pytest.mark.parametrize("content", [b"level = ", b'level = "\xe9"'])
def test_a_broken_file_is_named(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"broken\.toml is not valid TOML"):
        resolve(path, {})


def test_residuals_on_a_gpu_need_encoding_there() -> None:
    with pytest.raises(ConfigError, match=r'compress.residual_memory: "gpu" needs compress.encode = "gpu".*ENCODE'):
        resolve({"compress": {"residual_memory": "gpu"}}, {})
    for encode, memory in (("gpu", "gpu"), ("gpu", "host"), ("host", "host"), ("gpu", "auto")):
        found = resolve({"compress": {"encode": encode, "residual_memory": memory}}, {}).compress
        assert (found.encode, found.residual_memory) == (encode, memory)
    with pytest.raises(ConfigError, match=r"compress.residual_type.*'float32', 'bfloat16'"):
        resolve({"compress": {"residual_type": "float16"}}, {})


SOURCES = Path(gradwire.__file__).parent.rglob("*.py")
VARIABLES = sorted({name for path in SOURCES for name in re.findall(r"GRADWIRE_[A-Z0-9_]*[A-Z0-9]", path.read_text())})


@pytest.mark.parametrize("variable", VARIABLES)
def test_no_variable_that_gradwire_reads_is_refused(variable: str) -> None:
    assert variable in config.OTHER_VARIABLES or variable in config._fields()


def test_a_plan_that_is_left_open_is_no_planner_and_excludes_nothing() -> None:
    """Local steps and momentum are possible: trees are not tried then."""
    config = resolve({"plan": "auto", "sync_every": 5, "lossiest": "topk:0.03+int8"}, {})
    assert (config.plan, config.planner) == ("auto", "")
    assert resolve({"plan": "auto", "compress": {"momentum": 0.9}}, {}).warmup > 0
    assert resolve({"plan": "star"}, {}).planner == "star"
    assert resolve(None, {"GRADWIRE_PLAN": "auto"}).plan == "auto"
