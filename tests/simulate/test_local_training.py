"""Local steps in virtual time: the weights of real local steps, and the clock of ranks that wait once a round."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor

from gradwire.cli.main import cli as main
from gradwire.config import OuterConfig
from gradwire.decide.base import Job
from gradwire.errors import ConfigError
from gradwire.level import Level
from gradwire.network.presets import preset
from gradwire.simulate.local_training import simulation_of
from gradwire.simulate.local_workers import LocalWorkers
from gradwire.simulate.lockstep import Movement
from gradwire.simulate.tasks import TrainingTask, make_task, with_optimizer
from gradwire.simulate.timeline import Timeline
from gradwire.simulate.training import SimulatedJob, TrainingSimulation
from gradwire.simulate.transfer import NetworkTimes
from gradwire.simulate.workers import BucketTraffic, Workers
from gradwire.types import Bucket, Decision, StepFacts, View

AVERAGE = OuterConfig(kind="average")


def sgd() -> TrainingTask:
    return with_optimizer(make_task("mlp"), "sgd:0.05")


def flat(workers: Workers) -> Tensor:
    return flat_of(workers.parameters)


def flat_of(parameters: Sequence[Tensor]) -> Tensor:
    return torch.cat([one.detach().flatten() for one in parameters])


@pytest.mark.slow
def test_averaging_rounds_of_one_plain_sgd_step_are_synchronous_training() -> None:
    local, synchronous = LocalWorkers(sgd(), 3, seed=2, outer=AVERAGE), Workers(sgd(), 3, seed=2)
    local.begin_local()
    for _ in range(4):
        local.train_alone()
        local.end_round(Level())
        synchronous.train(Level())
    assert torch.allclose(flat(local), flat(synchronous), atol=1e-6)


def test_replicas_are_equal_after_a_round_and_differ_inside() -> None:
    workers = LocalWorkers(make_task("mlp"), 2, seed=1)
    workers.begin_local()
    first, second = ([one.detach() for one in replica.parameters] for replica in workers._replicas)
    workers.train_alone()
    assert not all(map(torch.equal, first, second))
    workers.end_round(Level.parse("int8"))
    assert all(map(torch.equal, first, second))


def test_the_divergence_of_a_round_has_the_norms_of_the_changes() -> None:
    workers = LocalWorkers(sgd(), 2, seed=1, outer=AVERAGE)
    workers.begin_local()
    before = flat(workers).clone()
    workers.train_alone()
    changes = [flat_of(replica.parameters) - before for replica in workers._replicas]
    found = workers.end_round(Level()).divergence
    assert found.steps == 1
    assert found.own == pytest.approx(sum(float(one.square().sum()) for one in changes) / 2, rel=1e-4)
    assert found.shared == pytest.approx(float(torch.stack(changes).mean(0).square().sum()), rel=1e-4)


def test_what_compressed_gradients_left_is_applied_by_the_first_local_step() -> None:
    """With plain SGD and averaging, the sum of all gradients is what moved the weights, whatever waited in between."""
    workers, exact = LocalWorkers(sgd(), 2, seed=3, outer=AVERAGE), Workers(sgd(), 2, seed=3)
    workers.train(Level.parse("topk:0.05"))
    residual = sum(torch.cat([one.worker(b, torch.device("cpu")) for b in workers.buckets]) for one in workers.feedback)
    exact.train(Level())
    owed = flat(workers) - flat(exact)
    workers.begin_local()
    before = flat(workers).clone()
    workers.train_alone()
    assert not any(one.pending(bucket) for one in workers.feedback for bucket in workers.buckets)
    workers.end_round(Level())
    moved = flat(workers) - before
    exact_before = flat(exact).clone()
    exact.train(Level())
    gradient_step = flat(exact) - exact_before
    assert residual.norm() > 0
    assert (moved + owed - gradient_step).norm() < 0.2 * owed.norm(), "the residual was applied with the gradient"


def test_the_end_of_local_steps_sends_the_residual_and_averages_the_optimizers() -> None:
    workers = LocalWorkers(make_task("mlp"), 2, seed=1)
    workers.begin_local()
    for _ in range(2):
        workers.train_alone()
        workers.end_round(Level.parse("topk:0.05"))
    workers.train_alone()
    moments = [[state["exp_avg"] for state in one.optimizer.state.values()] for one in workers._replicas]
    mean = [(a + b) / 2 for a, b in zip(*moments, strict=True)]
    buckets = workers.weight_buckets
    workers.end_local()
    assert not any(one.pending(bucket) for one in workers.feedback for bucket in buckets)
    for state, expected in zip(workers.optimizer.state.values(), mean, strict=True):
        assert torch.allclose(state["exp_avg"], expected)
    assert workers.train(Level()).loss > 0


def test_a_round_takes_its_slowest_ranks_compute_and_one_exchange() -> None:
    bucket = Bucket(0, 0, 100_000, 4, (), True)
    traffic = [BucketTraffic(bucket, ((Movement("direct", 50_000),),))]
    timeline = Timeline(NetworkTimes(preset("wan-us-eu", 2)), 0.1, random.Random(1))
    alone = [timeline.step_alone() for _ in range(5)]
    assert timeline.now == 0.0
    ended = timeline.end_round(traffic, Level(), 2)
    exchange = NetworkTimes(preset("wan-us-eu", 2)).direct(alone[-1], 50_000) - alone[-1]
    assert alone == sorted(alone)
    assert ended.end == pytest.approx(alone[-1] + exchange, rel=1e-6)
    slowest = min(ended.observations, key=lambda seen: seen.facts.exposed).facts
    assert slowest.exposed == pytest.approx(exchange, rel=1e-6)


def test_local_steps_are_faster_on_a_far_network_and_count_every_step() -> None:
    job = SimulatedJob(make_task("mlp"), preset("wan-us-eu", 2), "int8", sync_every=5)
    local = list(islice(simulation_of(job), 20))
    synchronous = list(islice(simulation_of(replace(job, sync_every=0)), 20))
    assert [one.step for one in local] == list(range(1, 21))
    assert all(one.sync_every == 5 for one in local)
    assert local[-1].seconds < synchronous[-1].seconds / 2
    assert local[-1].facts.steps == 5
    assert local[-1].loss < local[0].loss


def test_the_held_out_loss_is_that_of_the_weights_that_all_share() -> None:
    job = SimulatedJob(make_task("mlp"), preset("lan1g", 2), "off", sync_every=4, evaluate_every=1)
    steps = list(islice(simulation_of(job), 8))
    losses = [one.held_out for one in steps]
    assert len(set(losses[:3])) == 1, "inside a round the global weights do not change"
    assert losses[3] != losses[2]


def test_a_job_without_local_steps_is_the_synchronous_simulation() -> None:
    job = SimulatedJob(make_task("mlp"), preset("lan1g", 2), "off")
    assert type(simulation_of(job)) is TrainingSimulation


class Script:
    """A controller that decides so many steps a round by the number of the decision."""

    def __init__(self, *lengths: int) -> None:
        self._lengths = list(lengths)

    def decide(self, job: Job, view: View, facts: StepFacts, now: float) -> Decision:
        every = self._lengths.pop(0) if len(self._lengths) > 1 else self._lengths[0]
        return Decision(Level.parse("int8"), "the test's script", sync_every=every)


def test_decisions_change_between_synchronous_and_local_steps_at_a_boundary() -> None:
    job = SimulatedJob(make_task("mlp"), preset("lan1g", 2), "auto", sync_every="auto")
    simulation = simulation_of(job, Script(1, 3, 3, 2, 1))
    steps = list(islice(simulation, 16))
    # A job's first decisions are in force three steps after the one that they are based on (decide/decision_timing.py).
    assert [one.sync_every for one in steps] == [1, 1, 1, 1, 1, 3, 3, 3, 3, 3, 3, 2, 2, 1, 1, 1]
    assert steps[12].level.off, "the last round is uncompressed"
    assert steps[-1].loss < steps[0].loss


def test_a_number_of_local_steps_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="sync_every: -1"):
        simulation_of(SimulatedJob(make_task("mlp"), preset("lan1g", 2), "off", sync_every=-1))


def test_the_command_trains_with_local_steps() -> None:
    arguments = ["simulate", "--train", "mlp", "--net", "lan1g", "--level", "int8", "--steps", "6", "--json"]
    result = CliRunner().invoke(main, [*arguments, "--sync-every", "3"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)[0]["sync_every"] == 3


@pytest.mark.parametrize("given", ["0", "-2", "often"])
def test_the_command_refuses_other_periods(given: str) -> None:
    result = CliRunner().invoke(main, ["simulate", "--train", "mlp", "--net", "lan1g", f"--sync-every={given}"])
    assert result.exit_code != 0
    assert "sync-every" in str(result.exception)
