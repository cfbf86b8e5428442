"""Training in virtual time with the transport left open: the job finds the best one, or stays where it is."""

from __future__ import annotations

import statistics
from itertools import islice, pairwise

import pytest

from gradwire.decide.fixed import FixedLevel
from gradwire.level import Level
from gradwire.network import preset
from gradwire.simulate.tasks import make_task
from gradwire.simulate.training import SimulatedJob, TrainingSimulation
from gradwire.simulate.transports import ChosenTransport
from gradwire.types import FLAT_TRANSPORTS

# Steps until the transport is chosen, steps of a fixed one, and the last ones, whose median counts.
STEPS, FIXED, LAST = 60, 28, 14


def run(network: str, wire: ChosenTransport) -> tuple[float, TrainingSimulation]:
    """The median of the last steps, in seconds. A controller that always says int4 saves the time of finding it."""
    job = SimulatedJob(make_task("mlp"), preset(network, 4), "auto", wire, evaluate_every=STEPS + 1)
    simulation = TrainingSimulation(job, FixedLevel(Level.parse("int4")))
    ends = [step.seconds for step in islice(simulation, STEPS if wire == "auto" else FIXED)]
    took = [after - before for before, after in pairwise(ends[-LAST:])]
    return statistics.median(took), simulation


@pytest.mark.slow
@pytest.mark.parametrize(("network", "kept"), [("wan-us-eu", {"tcp", "ltp"}), ("lossy-wifi", {"ltp"})])
def test_on_far_and_lossy_networks_it_is_as_fast_as_the_best_fixed_transport(network: str, kept: set[str]) -> None:
    best = min(run(network, wire)[0] for wire in FLAT_TRANSPORTS)
    chosen, simulation = run(network, "auto")
    assert chosen <= best / 0.95
    assert simulation.transports.current.kind in kept
    assert len(simulation.transports.reasons) <= 6


@pytest.mark.slow
def test_on_a_near_network_it_stays_with_the_process_group() -> None:
    _, simulation = run("lan1g", "auto")
    assert simulation.transports.current.kind == "group"
    assert simulation.transports.reasons == []
