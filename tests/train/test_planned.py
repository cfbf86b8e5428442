"""DDP over a plan's trees: replicas agree at every level that can be summed, and errors name the setting."""

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
from gradwire.types import Decision, StepFacts, View
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


@pytest.mark.parametrize(("plan", "level"), [("star", "int8"), ("kary", "sharedk:0.1+int8")])
def test_residuals_in_bfloat16_are_the_ranks_own_setting_along_trees(ranks: Ranks, plan: str, level: str) -> None:
    for result in ranks.run(3, jobs.train_with_own_residuals, {"plan": plan, "level": level, "observe": {"verify": 1}}):
        assert result["agreed"]
        assert result["summary"].levels.keys() == {level}


@pytest.mark.parametrize("kind", ["ltp", "tcp"])
def test_any_wire_carries_a_plan(ranks: Ranks, kind: str) -> None:
    config = {"plan": "loadaware", "level": "int8", "transport": {"kind": kind}}
    assert all(result["agreed"] for result in ranks.run(3, jobs.train_small, config))


def test_a_plan_trains_as_plain_ddp_does(ranks: Ranks) -> None:
    plain = ranks.run(3, jobs.train_small, None)[0]["weights"]
    planned = ranks.run(3, jobs.train_small, {"plan": "loadaware", "level": "off"})[0]["weights"]
    torch.testing.assert_close(planned, plain, atol=1e-4, rtol=1e-3)


def test_auto_only_chooses_levels_that_can_be_summed(ranks: Ranks) -> None:
    results = ranks.run(2, jobs.train_small, {"plan": "loadaware", "level": "auto"})
    assert all(result["agreed"] for result in results)
    assert not any("topk" in level or "lowrank" in level for level in results[0]["summary"].levels)


@pytest.mark.parametrize("elastic", [False, True])
def test_the_users_cap_holds_from_the_first_step(ranks: Ranks, elastic: bool) -> None:
    """Without a cap the first step is int8, also where the plan decides the level."""
    config = {"plan": "star", "level": "auto", "lossiest": "fp16", "planning": {"elastic": elastic}}
    for result in ranks.run(2, jobs.train_small, config):
        assert result["agreed"]
        assert "fp16" in result["summary"].levels
        assert set(result["summary"].levels) <= {"off", "fp16"}


def test_a_level_that_cannot_be_summed_is_named(ranks: Ranks) -> None:
    with pytest.raises(AssertionError, match="cannot be summed inside a tree"):
        ranks.run(2, jobs.train_small, {"plan": "star", "level": "topk:0.1"})


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


class _AllAddresses(set[int]):
    """Contains every address until it is cleared, as if new residuals always had the addresses of old ones."""

    all = True

    def __contains__(self, address: object) -> bool:
        return self.all or super().__contains__(address)

    def clear(self) -> None:
        self.all = False
        super().clear()


def _load_residuals_at_sites(rank: int, world: int, names: list[str], before: int) -> float:
    """A job with sites loads a state with residuals of 1, after some steps. Returns how much of them ten more
    steps with zero gradients deliver."""
    os.environ["GRADWIRE_SITE"] = names[rank]
    try:
        model = DistributedDataParallel(jobs.small_net())
        handle = gradwire.attach(model, {"plan": "loadaware", "level": "int8"})
    finally:
        del os.environ["GRADWIRE_SITE"]
    residuals = {name: torch.ones(parameter.numel()) for name, parameter in model.module.named_parameters()}
    for step in range(before):
        model.zero_grad()
        (0.0 * model(jobs.batch(rank, step)[0]).sum()).backward()
    site = handle._built.reducer.site
    if before:
        site.local_sum.sent_residuals = _AllAddresses()
    handle.load_state_dict({**handle.state_dict(), "residuals": residuals})
    delivered = torch.zeros(())
    for step in range(10):
        model.zero_grad()
        (0.0 * model(jobs.batch(rank, step)[0]).sum()).backward()
        delivered += torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).mean()
    return float(delivered)


@pytest.mark.parametrize("before", [0, 3])
def test_residuals_of_followers_are_sent_too(ranks: Ranks, before: int) -> None:
    assert ranks.run(3, _load_residuals_at_sites, ["a", "a", "b"], before) == pytest.approx([1.0] * 3, abs=0.01)


def test_a_file_lists_the_ranks_of_each_site(ranks: Ranks, tmp_path: Path) -> None:
    path = tmp_path / "sites.json"
    path.write_text(json.dumps({"a": [0, 2], "b": [1]}))
    config = {"plan": "loadaware", "level": "off", "planning": {"sites": str(path)}}
    results = ranks.run(3, jobs.train_small, config)
    assert all(result["agreed"] for result in results)
    torch.testing.assert_close(
        results[0]["weights"], ranks.run(3, jobs.train_small, None)[0]["weights"], atol=1e-4, rtol=1e-3
    )
    path.write_text(json.dumps({"a": [0, 2]}))
    with pytest.raises(AssertionError, match="does not list rank 1"):
        ranks.run(3, jobs.train_small, config)


def _rolled_back(rank: int, world: int) -> int:
    """Three steps, three more, then the state after the third is loaded and three other steps follow."""
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


def test_an_elastic_job_that_loads_an_earlier_step_is_not_compared_with_its_steps_before(ranks: Ranks) -> None:
    assert ranks.run(2, _rolled_back) == [6, 6]


class Always:
    """A controller that always requests the same level."""

    def decide(self, job: Job, view: View, facts: StepFacts, now: float) -> Decision:
        return Decision(Level.parse("fp16"), "always")


def _levels_at_sites(rank: int, world: int, names: list[str]) -> tuple[str, str]:
    """The levels of the first and the last step on this rank."""
    os.environ["GRADWIRE_SITE"] = names[rank]
    try:
        model = DistributedDataParallel(jobs.small_net())
        handle = gradwire.attach(model, {"plan": "star", "level": "auto", "planning": {"elastic": True}})
    finally:
        del os.environ["GRADWIRE_SITE"]
    governor = handle._built.governor
    assert isinstance(governor, PlanGovernor)
    governor._controller = Always()
    levels = []
    for step in range(40):
        inputs, labels = jobs.batch(rank, step)
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        levels.append(str(governor.decision.level))
        time.sleep(0.02)
    handle.close()
    return levels[0], levels[-1]


def test_every_rank_of_a_site_uses_the_level_of_the_plan(ranks: Ranks) -> None:
    first, *others = ranks.run(3, _levels_at_sites, ["a", "a", "b"])
    assert first[0] != first[1] == "fp16"
    assert others == [first, first]
