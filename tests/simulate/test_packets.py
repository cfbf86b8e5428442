"""The packet simulator agrees with the flow simulator on clean links, shows the cost of loss, and is deterministic."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner

from gradwire._native import PacketLink, PacketWorld
from gradwire.cli.simulate import simulate_command
from gradwire.errors import ConfigError
from gradwire.network import LinkSpec, Network
from gradwire.network.network import as_hosts
from gradwire.network.network import matrix as full_matrix
from gradwire.plan.job import ReductionJob
from gradwire.plan.matrix import Matrix
from gradwire.plan.planners.registry import make_plan
from gradwire.simulate.compare import simulate
from gradwire.simulate.packets import MOST_SITES, simulate_packets
from gradwire.simulate.underlay import matrix_of
from gradwire.tree.partition import chunk_for
from gradwire.types import Plan
from gradwire.units import Rate, Seconds

# Of a full packet's 1538 bytes on the wire 1424 are gradient; the flow simulator knows gradient only.
GRADIENT_SHARE = 1424 / 1538
NBYTES = 3_000_000
RATES = ((0, 60, 22, 35), (30, 0, 48, 25), (55, 20, 0, 40), (28, 44, 32, 0))


def uneven(loss: float = 0.0, **more: Any) -> Network:
    names = [f"h{index}" for index in range(len(RATES))]
    spec = lambda i, j: LinkSpec(Rate.from_mbit(RATES[i][j]), Seconds(0.005), loss=loss, **more)  # noqa: E731
    return Network("uneven", as_hosts(names), full_matrix(names, spec))


def planned(planner: str) -> tuple[Plan, ReductionJob]:
    job = ReductionJob(NBYTES, chunk_for(NBYTES))
    return make_plan(matrix_of(uneven()), job, planner), job


@pytest.mark.parametrize("planner", ["star", "ring", "loadaware"])
def test_a_clean_network_takes_what_the_flow_simulator_says_within_15_per_cent(planner: str) -> None:
    plan, job = planned(planner)
    known = matrix_of(uneven())
    flows = simulate(Matrix.of(known.rate * GRADIENT_SHARE, known.rtprop), plan, job)
    assert flows is not None
    run = simulate_packets(uneven(), plan, job, steps=3)
    assert run.seconds[-1] == pytest.approx(flows.seconds, rel=0.15)


def test_the_first_synchronisation_pays_for_finding_the_rate() -> None:
    plan, job = planned("loadaware")
    first, *later = simulate_packets(uneven(), plan, job, steps=3).seconds
    assert first > max(later)


def test_loss_costs_the_retransmissions_and_not_much_more() -> None:
    plan, job = planned("loadaware")
    clean = simulate_packets(uneven(), plan, job, steps=6)
    lossy = simulate_packets(uneven(loss=0.02), plan, job, steps=6)
    assert 0.01 < lossy.lost / lossy.packets < 0.03
    # Single ones differ by a few per cent while LTP still probes for its rate.
    assert 1.0 < sum(lossy.seconds[-3:]) / sum(clean.seconds[-3:]) < 1.5


def test_packets_out_of_order_cost_little_and_a_seed_repeats_them() -> None:
    plan, job = planned("loadaware")
    clean = simulate_packets(uneven(), plan, job, steps=3)
    late = simulate_packets(uneven(reorder=0.02, reorder_by=Seconds(0.002)), plan, job, steps=3)
    assert late == simulate_packets(uneven(reorder=0.02, reorder_by=Seconds(0.002)), plan, job, steps=3)
    assert late != clean
    assert late.seconds[-1] < 1.3 * clean.seconds[-1]


def test_copies_are_recognised_and_cost_nothing() -> None:
    def transfer(duplicate: float) -> tuple[float, float]:
        world = PacketWorld(2, 1)
        for seed in range(2):
            link = PacketLink()
            link.rate, link.delay, link.queue, link.duplicate = 1e6, 0.01, 1e6, duplicate
            world.add_link(link, seed, 38)
        world.set_path(0, 1, [0])
        world.set_path(1, 0, [1])
        world.connect(0, 1)
        world.expect(1, 0, 1, 200_000)
        world.send(0, 1, 1, 200_000)
        ((seconds, *_),) = world.run(100.0)
        return seconds, world.stats(1, 0)["replayed"]

    clean, none = transfer(0.0)
    doubled, copies = transfer(0.5)
    assert none == 0
    assert copies > 50
    assert doubled == clean


def test_a_seed_repeats_a_run_to_the_bit_and_another_does_not() -> None:
    plan, job = planned("star")
    job = replace(job, nbytes=500_000)
    one = simulate_packets(uneven(0.02), plan, job, seed=3)
    assert one == simulate_packets(uneven(0.02), plan, job, seed=3)
    assert one != simulate_packets(uneven(0.02), plan, job, seed=4)


def test_frames_of_edges_without_a_link_are_relayed() -> None:
    names = ["a", "b", "c"]
    spec = LinkSpec(Rate.from_mbit(50), Seconds(0.002))
    links = tuple(
        link for link in full_matrix(names, lambda i, j: spec) if {link.source, link.target} != {"a", "c"}
    )  # fmt: skip
    network = Network("line", as_hosts(names, forwards=True), links)
    job = ReductionJob(200_000, 64 << 10)
    plan = make_plan(matrix_of(network), job, "star")
    assert plan.routes
    # b's sum and result cross one link, a's and c's two: 400 kB at least on the busiest, 64 ms.
    assert 0.06 < simulate_packets(network, plan, job).seconds[-1] < 0.2


def test_large_networks_are_refused() -> None:
    names = [f"h{index}" for index in range(MOST_SITES + 1)]
    network = Network("many", as_hosts(names), full_matrix(names, lambda i, j: LinkSpec(Rate.from_mbit(10))))
    job = ReductionJob(1000)
    with pytest.raises(ConfigError, match="at most 32"):
        simulate_packets(network, make_plan(matrix_of(network), job, "star"), job)


def test_the_command_shows_packets_beside_flows() -> None:
    arguments = ["--net", "netstorm9", "--model", "1MB", "--planner", "star", "--packets", "--json"]
    result = CliRunner().invoke(simulate_command, arguments)
    assert result.exit_code == 0, result.output
    row = json.loads(result.output)["rows"][0]
    assert 0.9 * row["simulated"] < row["packets"] < 2 * row["simulated"]
