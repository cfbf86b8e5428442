"""DDP over a plan's trees: replicas agree at every level that adds up, and mistakes are named."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.config import resolve
from gradwire.decide.base import Job
from gradwire.errors import ConfigError
from gradwire.level import Level
from gradwire.runtime.plan_governor import PlanGovernor
from gradwire.sites.reducer import _below
from gradwire.sites.topology import names_from, sites_of
from gradwire.types import Decision, StepFacts, Tree, View
from tests.train import jobs
from tests.train.ranks import Ranks


@pytest.mark.parametrize(
    ("plan", "level"), [("loadaware", "off"), ("star", "int8"), ("ring", "fp16"), ("kary", "sharedk:0.1+int8")]
)
def test_replicas_are_identical_after_every_step(ranks: Ranks, plan: str, level: str) -> None:
    results = ranks.run(3, jobs.train_small, {"plan": plan, "level": level, "observe": {"verify": 1}})
    assert all(result["agreed"] for result in results)
    assert results[0]["summary"].steps == 12
    assert results[0]["summary"].levels.keys() == {level}


@pytest.mark.parametrize("kind", ["ltp", "tcp"])
def test_any_wire_carries_a_plan(ranks: Ranks, kind: str) -> None:
    config = {"plan": "loadaware", "level": "int8", "transport": {"kind": kind}}
    assert all(result["agreed"] for result in ranks.run(3, jobs.train_small, config))


def test_a_plan_trains_as_plain_ddp_does(ranks: Ranks) -> None:
    plain = ranks.run(3, jobs.train_small, None)[0]["weights"]
    planned = ranks.run(3, jobs.train_small, {"plan": "loadaware", "level": "off"})[0]["weights"]
    torch.testing.assert_close(planned, plain, atol=1e-4, rtol=1e-3)


def test_auto_decides_among_levels_that_add_up(ranks: Ranks) -> None:
    results = ranks.run(2, jobs.train_small, {"plan": "loadaware", "level": "auto"})
    assert all(result["agreed"] for result in results)
    assert not any("topk" in level or "lowrank" in level for level in results[0]["summary"].levels)


def test_a_level_that_does_not_add_up_is_named(ranks: Ranks) -> None:
    with pytest.raises(AssertionError, match="does not add up inside a tree"):
        ranks.run(2, jobs.train_small, {"plan": "star", "level": "topk:0.1"})


def test_a_member_answers_for_everybody_below_it() -> None:
    tree = Tree(0, {0: 0, 1: 0, 2: 1, 3: 1}, 1.0)
    assert [_below(tree, member) for member in range(4)] == [4, 3, 1, 1]


def test_an_unknown_planner_is_named() -> None:
    with pytest.raises(ConfigError, match="loadaware"):
        resolve({"plan": "best"})
    assert resolve(None, {"GRADWIRE_PLAN": "ring", "GRADWIRE_PLANNING_GAIN": "0.2"}).plan == "ring"


def _at_sites(rank: int, world: int, names: list[str]) -> dict[str, object]:
    os.environ["GRADWIRE_SITE"] = names[rank]
    try:
        return jobs.train_small(rank, world, {"plan": "loadaware", "level": "off"})
    finally:
        del os.environ["GRADWIRE_SITE"]


@pytest.mark.parametrize("names", [["a", "a", "b"], ["a", "b", "a"], ["a", "a", "a"]])
def test_sites_sum_inside_first_and_the_mean_counts_every_rank(ranks: Ranks, names: list[str]) -> None:
    plain = ranks.run(3, jobs.train_small, None)[0]["weights"]
    results = ranks.run(3, _at_sites, names)
    assert all(result["agreed"] for result in results)
    torch.testing.assert_close(results[0]["weights"], plain, atol=1e-4, rtol=1e-3)


class _Everywhere(set[int]):
    """Has every address until it is cleared, as if new residuals always were where old ones had been."""

    everywhere = True

    def __contains__(self, address: object) -> bool:
        return self.everywhere or super().__contains__(address)

    def clear(self) -> None:
        self.everywhere = False
        super().clear()


def _owing_at_sites(rank: int, world: int, names: list[str], before: int) -> float:
    """A state with residuals of 1 is loaded by a job with sites, after some steps; what ten more steps without
    gradients deliver of them."""
    os.environ["GRADWIRE_SITE"] = names[rank]
    try:
        model = DistributedDataParallel(jobs.small_net())
        handle = gradwire.attach(model, {"plan": "loadaware", "level": "int8"})
    finally:
        del os.environ["GRADWIRE_SITE"]
    owed = {name: torch.ones(parameter.numel()) for name, parameter in model.module.named_parameters()}
    for step in range(before):
        model.zero_grad()
        (0.0 * model(jobs.batch(rank, step)[0]).sum()).backward()
    site = handle._assembly.session._rooms.planned.site
    if before:
        site._emptied = _Everywhere()
    handle.load_state_dict({**handle.state_dict(), "residuals": owed})
    delivered = torch.zeros(())
    for step in range(10):
        model.zero_grad()
        (0.0 * model(jobs.batch(rank, step)[0]).sum()).backward()
        delivered += torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).mean()
    return float(delivered)


@pytest.mark.parametrize("before", [0, 3])
def test_what_waits_on_ranks_that_do_not_lead_a_site_is_sent_too(ranks: Ranks, before: int) -> None:
    assert ranks.run(3, _owing_at_sites, ["a", "a", "b"], before) == pytest.approx([1.0] * 3, abs=0.01)


def test_a_site_named_on_some_ranks_only_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match="rank 1"):
        sites_of(["a", "", "b"])
    assert sites_of(["", ""]) is None
    sites = sites_of(["x", "y", "x", "y"])
    assert sites is not None
    assert sites.leaders == (0, 1)
    assert sites.of(2) == (0, 2)


def test_a_file_says_who_is_where(ranks: Ranks, tmp_path: Path) -> None:
    path = tmp_path / "sites.json"
    path.write_text(json.dumps({"a": [0, 2], "b": [1]}))
    config = {"plan": "loadaware", "level": "off", "planning": {"sites": str(path)}}
    results = ranks.run(3, jobs.train_small, config)
    assert all(result["agreed"] for result in results)
    torch.testing.assert_close(
        results[0]["weights"], ranks.run(3, jobs.train_small, None)[0]["weights"], atol=1e-4, rtol=1e-3
    )
    path.write_text(json.dumps({"a": [0, 2]}))
    with pytest.raises(AssertionError, match="does not say where rank 1 is"):
        ranks.run(3, jobs.train_small, config)


@pytest.mark.parametrize(
    ("text", "match"),
    [("[0, 1]", "cannot be read as"), ('{"a": [0, 1], "b": [1]}', "rank 1"), ('{"a": [0, 2]}', "rank 2")],
)
def test_a_file_of_sites_that_makes_no_sense_is_named(tmp_path: Path, text: str, match: str) -> None:
    path = tmp_path / "sites.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=match):
        names_from(path, 2)
    with pytest.raises(ConfigError, match="cannot be read"):
        names_from(tmp_path / "nowhere.json", 2)


def _rolled_back(rank: int, world: int) -> int:
    """Three steps, three more, back to the third, and three others in their place."""
    model = DistributedDataParallel(jobs.small_net())
    config = {"plan": "loadaware", "level": "off", "planning": {"elastic": True}, "observe": {"verify": 1}}
    handle = gradwire.attach(model, config)

    def train(batches: range) -> None:
        for batch in batches:
            inputs, labels = jobs.batch(rank, batch)
            torch.nn.functional.cross_entropy(model(inputs), labels).backward()

    try:
        train(range(3))
        saved = handle.state_dict()
        train(range(3, 6))
        handle.load_state_dict(saved)
        train(range(6, 9))
        return handle.step
    finally:
        handle.close()


def test_an_elastic_job_that_goes_back_to_a_saved_step_is_not_compared_with_what_it_did_before(ranks: Ranks) -> None:
    assert ranks.run(2, _rolled_back) == [6, 6]


class Always:
    """A controller that wishes for one level."""

    def decide(self, job: Job, view: View, facts: StepFacts, now: float) -> Decision:
        return Decision(Level.parse("fp16"), "always")


def _levels_at_sites(rank: int, world: int, names: list[str]) -> tuple[str, str]:
    """The level of the first step, and of the last, as this rank sees them."""
    os.environ["GRADWIRE_SITE"] = names[rank]
    try:
        model = DistributedDataParallel(jobs.small_net())
        handle = gradwire.attach(model, {"plan": "star", "level": "auto", "planning": {"elastic": True}})
    finally:
        del os.environ["GRADWIRE_SITE"]
    governor = handle._assembly.governor
    assert isinstance(governor, PlanGovernor)
    governor._controller = Always()
    levels = []
    for step in range(40):
        inputs, labels = jobs.batch(rank, step)
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        levels.append(str(governor._decision.level))
        time.sleep(0.02)
    handle.close()
    return levels[0], levels[-1]


def test_every_rank_of_a_site_knows_the_level_that_the_plan_has(ranks: Ranks) -> None:
    first, *others = ranks.run(3, _levels_at_sites, ["a", "a", "b"])
    assert first[0] != first[1] == "fp16"
    assert others == [first, first]
