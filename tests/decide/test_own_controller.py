"""A user's own controller, exactly as in docs/controllers.md: its package is installed, its name is a level."""

from __future__ import annotations

import importlib
import re
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gradwire.errors import ConfigError
from gradwire.level import Level
from gradwire.runtime.governor import sendable
from gradwire.types import Decision
from tests.train import jobs, sharded
from tests.train.ranks import Ranks

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "controllers.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of the guide as installed: the module and a dist-info folder with its entry point."""
    project = tomllib.loads(blocks("toml")[0])["project"]
    where = tmp_path_factory.mktemp("site")
    (where / "my_controller.py").write_text((ROOT / "examples" / "my_controller.py").read_text())
    info = where / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
        for group, entries in project["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))
    return where


@contextmanager
def installed(where: Path, allowance: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(where))
        patch.setenv("METERED_MB_A_STEP", allowance)
        importlib.invalidate_caches()
        try:
            yield
        finally:
            sys.modules.pop("my_controller", None)


def train(rank: int, world: int, where: Path, allowance: str, sharding: bool, lossiest: str = "") -> dict[str, Any]:
    with installed(where, allowance):
        settings = {"level": "metered", "lossiest": lossiest}
        return (sharded.train if sharding else jobs.train_small)(rank, world, settings)


def test_the_guide_shows_the_example_that_is_run_here() -> None:
    assert blocks("python")[0] == (ROOT / "examples" / "my_controller.py").read_text()


def test_its_level_is_used_on_every_rank_from_the_fourth_step(ranks: Ranks, site: Path) -> None:
    for result in ranks.run(2, train, site, "0.003", False):
        summary = result["summary"]
        buckets = len(summary.reasons)
        # Pulses of step 1 carry the first facts for a decision; pulses of step 2 carry the decision; step 3 uses it.
        assert set(summary.levels) <= {"off", "int8", "topk:0.03+int8"}
        assert summary.levels["topk:0.03+int8"] == 9 * buckets
        assert result["agreed"]
        assert all("MB allowed" in reason for reason in summary.reasons.values())


def test_another_allowance_gives_another_level(ranks: Ranks, site: Path) -> None:
    assert "off" in ranks.run(2, train, site, "1.0", False)[1]["summary"].levels


def test_it_works_with_sharded_training(ranks: Ranks, site: Path) -> None:
    for result in ranks.run(2, train, site, "0.003", True):
        assert set(result["summary"].levels) <= {"off", "int8", "topk:0.03+int8"}
        assert "topk:0.03+int8" in result["summary"].levels
        assert result["agreed"]


@pytest.mark.parametrize("sharding", [False, True])
def test_the_users_cap_limits_it(ranks: Ranks, site: Path, sharding: bool) -> None:
    for result in ranks.run(2, train, site, "0.003", sharding, "int4"):
        assert set(result["summary"].levels) <= {"off", "int8", "int4"}
        assert "int4" in result["summary"].levels
        assert result["agreed"]
        assert all("lossiest = int4 forbids topk:0.003+int8: " in why for why in result["summary"].reasons.values())


def test_a_cap_that_takes_more_operations_than_any_rung_has_its_lanes(ranks: Ranks, site: Path) -> None:
    for result in ranks.run(2, train, site, "0.003", False, "sharedk:0.1+int8"):
        assert "sharedk:0.1+int8" in result["summary"].levels
        assert result["agreed"]


def test_the_guides_own_test_holds(site: Path) -> None:
    with installed(site, "1.0"):
        namespace = {"Metered": importlib.import_module("my_controller").Metered}
        exec(blocks("python")[-1], namespace)
        assert isinstance(namespace["decision"], Decision)


def test_a_share_is_rounded_alike_on_all_ranks() -> None:
    wish = Decision(Level(select="topk", ratio=1 / 3, values="int8"), "a third")
    assert sendable(wish) == replace(wish, level=Level.parse("topk:0.333333+int8"))


def test_a_level_that_cannot_work_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="controller: lowrank can be combined with"):
        sendable(Decision(Level(select="lowrank", rank=4, values="int2"), "no"))
    with pytest.raises(ConfigError, match="controller"):
        sendable(Decision(Level(values="fp8"), "no"))  # type: ignore[arg-type]
