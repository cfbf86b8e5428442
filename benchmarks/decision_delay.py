"""What an earlier answer to a fall of the network saves, in virtual time.

    python benchmarks/decision_delay.py [--tasks mlp,gpt] [--nets drop,lte] [--steps 200] [--seeds 3]

Trains under `auto` with decisions in force one, two and three steps after the step that they are based on, and prints
the seconds that all steps take. Two is what gradwire does, three what it does where decisions arrive late, one what it
could do if ranks exchanged what they measured before the next step begins. `within` is a bound of what a change of the
level within the running step could save beyond that: for every step that is followed by a change to a level that sends
less, its time above that of the first step at the new level, as if the whole step had been sent at that level already.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterable
from itertools import islice, pairwise

import torch

from gradwire.decide.decision_timing import DecisionTiming
from gradwire.simulate.tasks import make_task
from gradwire.simulate.training import SimulatedJob, SimulatedStep, TrainingSimulation
from harness.progress.networks import network_of

HOSTS = 4
# Steps from the one that a decision is based on to the one from which it is in force.
DELAYS = (3, 2, 1)


class FixedTiming(DecisionTiming):
    """The same delay always, whether decisions arrive in time or not."""

    def take(self, late: Iterable[float]) -> int:
        return self.delay


def train(task: str, net: str, steps: int, seed: int, delay: int) -> list[SimulatedStep]:
    made = make_task(task)
    network = network_of(net, HOSTS, steps * made.compute, None)
    simulation = TrainingSimulation(SimulatedJob(made, network, "auto", seed=seed, evaluate_every=steps + 1))
    simulation.timing = FixedTiming(delay - 1)
    return list(islice(simulation, steps))


def saved_within(ran: list[SimulatedStep]) -> float:
    """Of a run whose decisions are in force at the next step."""
    took = [ran[0].seconds, *(after.seconds - before.seconds for before, after in pairwise(ran))]
    falls = (at for at in range(1, len(ran)) if ran[at].facts.wire_bytes < 0.9 * ran[at - 1].facts.wire_bytes)
    return sum(max(0.0, took[at - 1] - took[at]) for at in falls)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default="mlp,gpt")
    parser.add_argument("--nets", default="drop,lte")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"| task | network | {' | '.join(f's + {delay}' for delay in DELAYS)} | within |\n|---|---|---|---|---|---|")
    for task in args.tasks.split(","):
        for net in args.nets.split(","):
            runs = {
                delay: [train(task, net, args.steps, seed, delay) for seed in range(1, args.seeds + 1)]
                for delay in DELAYS
            }
            totals = [statistics.mean(run[-1].seconds for run in runs[delay]) for delay in DELAYS]
            within = statistics.mean(saved_within(run) for run in runs[1])
            print(f"| {task} | {net} | {' | '.join(f'{one:.2f} s' for one in totals)} | {within:.2f} s |", flush=True)


if __name__ == "__main__":
    main()
