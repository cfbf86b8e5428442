"""Training in virtual time: its gradients are those of real training, its times those of the network's model."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from itertools import islice, pairwise

import pytest
import torch
from click.testing import CliRunner

from gradwire.cli.main import cli as main
from gradwire.decide.auto import Auto
from gradwire.decide.ladder import LADDER
from gradwire.errors import ConfigError, IntegrityError
from gradwire.exchange.select import FootprintTable
from gradwire.level import Level
from gradwire.network.presets import preset
from gradwire.simulate import workers
from gradwire.simulate.lockstep import Movement, run_lockstep
from gradwire.simulate.tasks import OptimizerSpec, TrainingTask, make_task, with_optimizer
from gradwire.simulate.timeline import Timeline, work_per_element
from gradwire.simulate.training import SimulatedJob, TrainingSimulation
from gradwire.simulate.transfer import NetworkTimes
from gradwire.simulate.workers import BucketTraffic, Workers
from gradwire.transport.lanes.base import AllGather, AllReduce, AllToAll
from gradwire.types import Bucket

LEVELS = ["int8", "int4", "topk:0.1+int8", "topk:0.01+int8", "lowrank:2"]


def mlp() -> TrainingTask:
    return make_task("mlp")


def test_lockstep_moves_what_lanes_move() -> None:
    seen = {}

    def exchange(rank: int):
        parts, received = torch.tensor([[rank, 0], [rank, 1]]), torch.zeros(2, 2, dtype=torch.int64)
        yield AllToAll(parts, received)
        everyone = torch.zeros(2, 2, dtype=torch.int64)
        yield AllGather(received[1], everyone)
        total = torch.tensor([float(rank + 1)])
        yield AllReduce(total)
        seen[rank] = received.tolist(), everyone.tolist(), total.tolist()

    moved = run_lockstep([exchange(0), exchange(1)])
    assert seen[0] == ([[0, 0], [1, 0]], [[1, 0], [1, 1]], [3.0])
    assert seen[1] == ([[0, 1], [1, 1]], [[1, 0], [1, 1]], [3.0])
    assert [one.kind for one in moved] == ["direct", "direct", "ring"]


@pytest.mark.slow
def test_low_rank_in_groups_of_small_buckets_trains_as_in_one_bucket_and_moves_its_footprints() -> None:
    level, task = Level.parse("lowrank:2"), make_task("gpt")
    many, few = Workers(task, 3, seed=2, bucket_mb=0.05), Workers(task, 3, seed=2)
    for _ in range(2):
        traffic = many.train(level).traffic
        few.train(level)
    for one, other in zip(many.parameters, few.parameters, strict=True):
        assert torch.equal(one, other)
    held = [one.held for one in traffic]
    assert 1 < sum(held) < len(held)
    predicted = FootprintTable(3)(level, many.buckets)
    for one, size in zip(traffic, predicted, strict=True):
        assert 2 * sum(op.nbytes for chunk in one.chunks for op in chunk) == pytest.approx(size.wire_bytes, abs=64)


def test_every_rung_costs_its_own_work_and_other_levels_that_of_the_most_similar_rung() -> None:
    assert {str(rung.level): work_per_element(rung.level) for rung in LADDER} == {
        str(rung.level): rung.work for rung in LADDER
    }
    for level, rung in (("lowrank:8", "lowrank:4"), ("lowrank:64", "lowrank:64+int4"), ("topk:0.02", "topk:0.03+int8")):
        assert work_per_element(Level.parse(level)) == work_per_element(Level.parse(rung))


def test_a_held_bucket_is_encoded_when_it_is_ready_and_decoded_with_its_group() -> None:
    level, buckets = Level.parse("lowrank:2"), [Bucket(index, 0, 10_000_000, 4, (), index == 2) for index in range(3)]
    ops = ((Movement("direct", 1000),),)

    def end(held: bool) -> float:
        timeline = Timeline(NetworkTimes(preset("lan1g", 2)), 0.1, random.Random(1))
        middle = BucketTraffic(buckets[1], () if held else ops, held)
        return timeline.step([BucketTraffic(buckets[0], ops), middle, BucketTraffic(buckets[2], ops)], level, 2).end

    decoding = work_per_element(level) * 1e-9 * buckets[1].numel / 2
    assert end(held=True) == pytest.approx(end(held=False) + decoding, rel=0.02)


def test_ranks_that_disagree_are_an_error() -> None:
    with pytest.raises(IntegrityError, match="different operations"):
        run_lockstep([iter([AllReduce(torch.ones(1))]), iter([])])


def test_uncompressed_workers_train_as_one_process_with_their_batches_together() -> None:
    task = with_optimizer(mlp(), "sgd:0.05:0.9")
    workers = Workers(task, 3, seed=5)
    torch.manual_seed(5)
    alone = task.module()
    optimizer = task.optimizer(list(alone.parameters()))
    batches = [task.batches(5, rank, 3) for rank in range(3)]
    for _ in range(5):
        workers.train(Level())
        parts = [next(batch) for batch in batches]
        loss = task.loss(alone, torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for mine, other in zip(workers.parameters, alone.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("text", LEVELS)
def test_no_gradient_is_lost(text: str) -> None:
    """What was applied and what waits add up to what the workers computed, in units of the mean."""
    workers = Workers(with_optimizer(mlp(), "sgd:0.01"), 3)
    level = Level.parse(text)
    before = [p.detach().clone() for p in workers.parameters]
    fresh = [torch.zeros(b.numel) for b in workers.buckets]
    inner = workers._synchronise

    def counting(bucket, gradients, level):
        fresh[bucket.index] += torch.stack(gradients).mean(0)
        return inner(bucket, gradients, level)

    workers._synchronise = counting  # type: ignore[method-assign]
    for _ in range(4):
        workers.train(level)
    applied = {id(p): (a - p.detach()).reshape(-1) / 0.01 for a, p in zip(before, workers.parameters, strict=True)}
    for bucket, slots in zip(workers.buckets, workers._slots, strict=True):
        sent = torch.cat([applied[id(p)] for p in slots])
        for feedback in workers.feedback:
            feedback.fold(bucket.index)
        waits = torch.stack([f.worker(bucket, torch.device("cpu")) for f in workers.feedback]).mean(0)
        torch.testing.assert_close(sent + waits, fresh[bucket.index], rtol=1e-3, atol=2e-4)


def test_equal_jobs_give_equal_runs_and_other_seeds_other_ones() -> None:
    job = SimulatedJob(mlp(), preset("lossy-wifi", 3), "auto")

    def run(one: SimulatedJob) -> list[tuple[float, float, str]]:
        return [(s.seconds, s.loss, str(s.level)) for s in islice(TrainingSimulation(one), 12)]

    assert run(job) == run(job)
    assert run(job) != run(replace(job, seed=2))


def test_a_slow_network_takes_longer_and_compression_helps_there() -> None:
    def seconds(net: str, level: str) -> float:
        return list(islice(TrainingSimulation(SimulatedJob(mlp(), preset(net, 3), level)), 8))[-1].seconds

    assert seconds("lan100", "off") > 2 * seconds("lan1g", "off")
    assert seconds("lan100", "off") > 2 * seconds("lan100", "int4")


def test_a_step_without_a_network_takes_its_compute_time() -> None:
    task = replace(mlp(), compute=1.0)
    steps = list(islice(TrainingSimulation(SimulatedJob(task, preset("lan1g", 2), "int4")), 5))
    assert steps[-1].seconds == pytest.approx(5.0, rel=0.1)
    assert steps[-1].facts.compute == pytest.approx(1.0, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt", "cnn", "resnet", "mlp"])
def test_every_task_learns_from_built_in_data(name: str) -> None:
    workers = Workers(make_task(name), 1)
    before = workers.held_out_loss()
    for _ in range(25):
        workers.train(Level())
    assert workers.held_out_loss() < before


def test_the_command_prints_one_row_for_each_level() -> None:
    arguments = ["simulate", "--train", "mlp", "--net", "lan100", "--hosts", "2", "--steps", "4"]
    result = CliRunner().invoke(main, [*arguments, "--level", "off,int4", "--json"])
    assert result.exit_code == 0, result.output
    rows = json.loads(result.output)
    assert [row["level"] for row in rows] == ["off", "int4"]
    assert rows[0]["seconds"] > rows[1]["seconds"]
    shown = CliRunner().invoke(main, [*arguments, "--level", "int8"])
    assert "virtual time" in shown.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--train", "gtp"], "train: 'gtp' is not one of gpt, cnn, resnet, mlp"),
        (["--train", "mlp", "--optimizer", "sgd"], "optimizer: 'sgd' is not valid"),
        (["--train", "mlp", "--transport", "quic"], "transport: 'quic' cannot be simulated"),
        (["--train", "mlp", "--level", "int5"], "level"),
        (["--train", "mlp", "--steps", "0"], "steps: must be 1 or more"),
        (["--train", "os:getcwd"], "return a gradwire.simulate.tasks.TrainingTask"),
        (["--train", "mlp", "--data", "/nowhere"], "data: /nowhere is not a directory"),
    ],
)
def test_bad_options_say_what_to_change(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(main, ["simulate", "--net", "lan100", *arguments])
    assert result.exit_code != 0
    assert message in result.output + str(result.exception)


def test_optimizers_are_read_from_text() -> None:
    assert OptimizerSpec.parse("sgd:0.1:0.9") == OptimizerSpec("sgd", 0.1, 0.9)
    assert OptimizerSpec.parse("AdamW:1e-3") == OptimizerSpec("adamw", 1e-3)
    with pytest.raises(ConfigError, match="adamw:RATE"):
        OptimizerSpec.parse("adamw:-1")


def test_auto_is_told_the_learning_rate_and_says_what_its_level_costs() -> None:
    """In virtual time as in a job: predicted from the gradient, and not known from sixty noted losses."""
    made = replace(make_task("mlp", batch=2), cosine=120)
    controller = Auto(extra_steps=5.0)
    simulation = TrainingSimulation(SimulatedJob(made, preset("lte", 2), "auto", note_loss=True), controller)
    steps = list(islice(simulation, 60))
    rates = [step.facts.rate for step in steps]
    assert all(after < before for before, after in pairwise(rates))  # type: ignore[operator]
    last = simulation._made[-1].slowdown
    assert last is not None
    assert (last.level, last.notes, last.realised) == (steps[-1].level, 60, None)
    assert last.used == last.predicted > 1


@pytest.mark.parametrize("level", ["int8", "int2", "topk:0.1+int8", "topk:0.001+int8", "exactk:0.05"])
def test_decoding_the_mean_on_one_rank_only_changes_nothing(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses, weights and every rank's residuals are those of ranks that all restore the mean."""
    trained = []
    for restored_once in (workers.RESTORED_ONCE, frozenset[str]()):
        monkeypatch.setattr(workers, "RESTORED_ONCE", restored_once)
        job = Workers(make_task("mlp", batch=2), 3)
        losses = [job.train(Level.parse(level)).loss for _ in range(3)]
        residuals = [one.worker(bucket, torch.device("cpu")) for one in job.feedback for bucket in job.buckets]
        trained.append((losses, [*job.parameters, *residuals]))
    assert trained[0][0] == trained[1][0]
    assert all(torch.equal(one, other) for one, other in zip(trained[0][1], trained[1][1], strict=True))
