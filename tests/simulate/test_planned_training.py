"""Training in virtual time with the routes left open: trees where they are better, else nothing is opened."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from functools import cache
from itertools import islice, pairwise

import pytest
from click.testing import CliRunner

from gradwire.cli.main import cli as main
from gradwire.decide.fixed import FixedLevel
from gradwire.errors import ConfigError
from gradwire.level import Level
from gradwire.network import Network, preset
from gradwire.simulate.simulated_routes import SimulatedRoutes
from gradwire.simulate.tasks import make_task
from gradwire.simulate.training import SimulatedJob, TrainingSimulation
from gradwire.simulate.transfer import NetworkTimes
from gradwire.simulate.tree_times import TreeTimes
from gradwire.tree.frame_cost import FRAME
from gradwire.units import Rate

LAST = 14


def slower(name: str, factor: float = 10.0) -> Network:
    """A preset with a tenth of its rates: the built-in model is a tenth of the lab's, so its bytes take as long."""
    network = preset(name)
    links = (replace(link, spec=replace(link.spec, rate=Rate(link.spec.rate / factor))) for link in network.links)
    return replace(network, links=tuple(links))


@cache
def run(name: str, plan: str, level: str = "int4", steps: int = 44) -> tuple[float, TrainingSimulation]:
    """The median of the last steps, in seconds."""
    job = SimulatedJob(make_task("mlp"), slower(name), "auto", "auto", evaluate_every=steps + 1, plan=plan)
    simulation = TrainingSimulation(job, FixedLevel(Level.parse(level)))
    ends = [step.seconds for step in islice(simulation, steps)]
    return statistics.median(after - before for before, after in pairwise(ends[-LAST:])), simulation


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "gain", "planner"), [("two-offices", 1.7, "sites"), ("four-regions", 1.7, "loadaware")]
)
def test_trees_win_where_a_line_or_a_link_is_the_limit(name: str, gain: float, planner: str) -> None:
    flat, _ = run(name, "")
    chosen, simulation = run(name, "auto")
    assert simulation.transports.current.kind == "trees"
    assert isinstance(simulation.times, TreeTimes)
    assert simulation.times.plan.planner == planner
    assert flat / chosen > gain


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lan100", "lan1g"])
def test_on_a_local_network_nothing_is_opened_and_no_time_is_lost(name: str) -> None:
    flat, _ = run(name, "")
    chosen, simulation = run(name, "auto")
    assert simulation.transports.current.kind == "group"
    assert simulation.transports._prepared == "group"
    assert chosen == pytest.approx(flat, rel=0.01)
    assert [one for one in simulation.transports.reasons if not one.reason.startswith("sums stay")] == []


def test_a_planner_carries_every_step_by_its_trees() -> None:
    took, simulation = run("four-regions", "loadaware", steps=16)
    assert simulation.transports.along_trees
    assert took < 0.7 * run("four-regions", "")[0]


def test_a_level_that_trees_cannot_sum_is_refused() -> None:
    job = SimulatedJob(make_task("mlp"), slower("four-regions"), "topk:0.1", plan="loadaware")
    with pytest.raises(ConfigError, match="cannot be summed inside a tree"):
        TrainingSimulation(job)


def test_two_ranks_have_no_trees() -> None:
    simulation = TrainingSimulation(SimulatedJob(make_task("mlp"), preset("lan1g", 2), plan="auto"))
    assert simulation.transports.routes is None


def test_ranks_behind_one_line_share_it_along_trees() -> None:
    """Sites first send one copy over the line of 2 Mbit/s up, a star over all ranks sends two."""
    network = preset("two-offices")
    nbytes, line = 100_000, 2e6 / 8
    seconds = {}
    for planner in ("sites", "star"):
        plan, _ = SimulatedRoutes(network, "tcp").opened(planner)
        seconds[planner] = TreeTimes(network, plan).operate("tree", 0.0, nbytes)
    assert seconds["sites"] == pytest.approx(nbytes / line, rel=0.5)
    assert seconds["star"] > 1.6 * seconds["sites"]


def test_ranks_report_a_link_only_after_it_was_used() -> None:
    times = NetworkTimes(preset("four-regions"), "tcp")
    assert times.report_links() == {}
    times.direct(0.0, 200_000)
    links = times.report_links()
    assert links[0, 1].rate == pytest.approx(4e6 / 8, rel=0.1)
    assert links[0, 1].rtprop == pytest.approx(0.04)
    assert times.report_links() == {}


def test_the_command_says_what_carries_the_steps() -> None:
    arguments = ["simulate", "--train", "mlp", "--net", "four-regions", "--plan", "loadaware", "--steps", "3"]
    result = CliRunner().invoke(main, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.output)
    assert row["transport"] == "trees"
    assert row["typical"] > 0


@pytest.mark.parametrize(
    ("extra", "message"),
    [(["--plan", "treees"], "plan: 'treees' cannot be simulated"), (["--plan", "auto", "--sync-every", "4"], "plan: ")],
)
def test_plans_that_cannot_be_simulated_are_refused(extra: list[str], message: str) -> None:
    result = CliRunner().invoke(main, ["simulate", "--train", "mlp", "--net", "four-regions", *extra])
    assert result.exit_code != 0
    assert message in (result.output + str(result.exception))


@pytest.mark.slow
def test_with_levels_of_its_own_a_job_finds_trees_without_waiting_for_them() -> None:
    """A wire is chosen first where it is better; trees are compared with it when they can be predicted."""
    ends = {}
    for plan in ("", "auto"):
        job = SimulatedJob(make_task("mlp"), slower("campus-wifi"), "auto", "auto", evaluate_every=100, plan=plan)
        simulation = TrainingSimulation(job)
        steps = list(islice(simulation, 80))
        kinds = [step.transport for step in steps]
        ends[plan] = steps[-1].seconds
    assert kinds.index("ltp") < 20 < kinds.index("trees")
    assert kinds[-1] == "trees"
    assert ends["auto"] < 0.98 * ends[""]


def test_hops_take_processor_time() -> None:
    """0.2 ms for both ends of a frame, up and down; and a root whose processor is slow is what takes time."""
    network = preset("lan1g")
    plan, _ = SimulatedRoutes(network, "tcp").opened("star")
    times = TreeTimes(network, plan)
    assert times.operate("tree", 0.0, 1) > 2 * 2 * FRAME
    before = times.operate("tree", 1.0, 50_000) - 1.0
    times.handling = 1e-6  # a slow processor: a microsecond for each byte
    assert times.operate("tree", 2.0, 50_000) - 2.0 > max(2 * before, 3 * 50_000 * times.handling)


def test_a_ring_over_links_that_are_alike_in_a_mesh_of_unequal_ones() -> None:
    """The pair whose state stands for all that are alike may not be part of the ring."""
    times = NetworkTimes(preset("four-regions"), "group")
    assert times.ring(0.0, 100_000) == pytest.approx(6 * (100_000 / (4e6 / 8) + 0.02), rel=0.3)
