"""Estimates of described jobs: what they predict agrees with training in virtual time, and orders options sensibly."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gradwire.level import Level
from gradwire.network import Network
from gradwire.network.presets import preset
from gradwire.simulate.estimate import LEVELS, DescribedJob, Estimate, best_local, chosen, estimate
from gradwire.simulate.tasks import make_task
from gradwire.simulate.training import SimulatedJob, TrainingSimulation
from gradwire.types import FLAT_TRANSPORTS


def job(network: str = "lan100", parameters: int = 1_000_000, compute: float = 0.02, hosts: int = 4) -> DescribedJob:
    return DescribedJob(parameters, compute, preset(network, hosts))


def one(options: list[Estimate], level: str, transport: str = "group", every: int = 1) -> Estimate:
    (found,) = [o for o in options if (o.level, o.transport, o.sync_every) == (level, transport, every)]
    return found


def simulated_step(network: Network, level: str, transport: str) -> tuple[DescribedJob, float]:
    """The mean step of a training in virtual time after its first steps, and the same job described."""
    simulated = SimulatedJob(make_task("mlp"), network, level, transport, evaluate_every=1000)  # type: ignore[arg-type]
    simulation = TrainingSimulation(simulated)
    ends = [simulation.step().seconds for _ in range(12)]
    numel = sum(bucket.numel for bucket in simulation.workers.buckets)
    return DescribedJob(numel, simulated.task.compute, network), (ends[-1] - ends[5]) / 6


@pytest.mark.parametrize(
    ("network", "level", "transport"),
    [
        ("lan100", "off", "group"),
        ("wan-us-eu", "int4", "group"),
        ("wan-us-eu", "int4", "tcp"),
        ("lan1g", "int8", "ltp"),
    ],
)
def test_an_estimate_is_what_training_in_virtual_time_takes(network: str, level: str, transport: str) -> None:
    described, took = simulated_step(preset(network, 4), level, transport)
    assert one(estimate(described, (), (Level.parse(level),)), level, transport).step == pytest.approx(took, rel=0.1)


def test_every_level_and_transport_is_estimated_and_plain_ddp_comes_first() -> None:
    options = estimate(job(), (10,))
    assert (options[0].level, options[0].transport, options[0].sync_every) == ("off", "group", 1)
    assert len(options) == (len(LEVELS) + 1) * len(FLAT_TRANSPORTS)


def test_local_steps_divide_the_bytes_and_approach_the_compute_time() -> None:
    options = estimate(job("wan-us-eu"))
    every10, every100 = one(options, "int8", every=10), one(options, "int8", every=100)
    assert every10.wire_bytes == pytest.approx(10 * every100.wire_bytes)
    assert 0.02 < every100.step < every10.step < one(options, "int8").step
    assert every100.price > every10.price > 1
    assert best_local(options) is min((o for o in options if o.sync_every > 1), key=lambda o: o.to_accuracy)
    assert best_local(estimate(job(), ())) is None


def test_a_network_that_compute_hides_needs_no_compression() -> None:
    assert chosen(estimate(job("lan1g", parameters=10_000, compute=0.2))).level == "off"


def test_a_slow_network_is_answered_by_a_level_that_costs_next_to_no_steps() -> None:
    options = estimate(job("lan100", parameters=5_000_000))
    found = chosen(options)
    assert found.level == "int4"
    assert found.step < 0.25 * options[0].step


def test_packet_loss_is_answered_by_ltp() -> None:
    assert chosen(estimate(job("lossy-wifi"))).transport == "ltp"


def test_sgd_pays_less_for_lossy_levels_than_adam() -> None:
    adam, sgd = (
        estimate(replace(job(), adaptive=adaptive), (), (Level.parse("topk:0.01+int8"),)) for adaptive in (True, False)
    )
    assert one(sgd, "topk:0.01+int8").price < one(adam, "topk:0.01+int8").price


def test_low_rank_is_left_out_because_its_size_depends_on_shapes() -> None:
    assert all(level.select != "lowrank" for level in LEVELS)
    assert Level.parse("int4") in LEVELS
