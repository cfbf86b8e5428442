"""Local steps on machines of unequal speed: rounds of a number of steps, and rounds by time, after the same time.

    python benchmarks/unequal_machines.py [--seconds 1,1,1,3] [--every 20] [--rounds 30] [--level int8] [--seed 1]

Workers in one process (gradwire.simulate.local_workers), real gradients, the shipped weights and outer optimizer, in
virtual time, without a network. `--seconds` are those of each worker's step. A round of `--every` steps takes as long
as the slowest worker needs for them; a round by time has as many seconds as the fastest worker needs for `--every`
steps, and each worker makes the steps that begin in it. The third run gives every worker the same weight.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from gradwire.level import Level
from gradwire.local_steps.round_agreement import RankProgress, shares
from gradwire.simulate.local_workers import LocalWorkers
from gradwire.simulate.tasks import CharGpt, TrainingTask, make_task, with_optimizer

# As in benchmarks/local_steps.py.
BATCH, WIDTH = 8, 64


class UnequalWorkers(LocalWorkers):
    """Every worker makes its own number of steps in a round."""

    def round(self, steps: Sequence[int], level: Level, weighted: bool) -> None:
        for rank, (one, count) in enumerate(zip(self._replicas, steps, strict=True)):
            for _ in range(count):
                self._step_alone(rank, one)
        everyone = [RankProgress((count if weighted else 1,), (0,)) for count in steps]
        factors = [len(steps) * share for share in shares(everyone, 0)]
        for index, first in enumerate(self._replicas[0].weights.buckets):
            changes = [one.weights.buckets[index].measure() for one in self._replicas]
            for one, factor in zip(self._replicas, factors, strict=True):
                one.weights.buckets[index].scale(factor)
            self._synchronise(replace(first.bucket, step=self.rounds), changes, level)
        self._apply_outer()


def train(
    task: TrainingTask, options: argparse.Namespace, steps: Sequence[int], seconds: float, weighted: bool = True
) -> list[tuple[float, float]]:
    """(time, held-out loss of the global weights) after each round, until the time that all runs have."""
    workers = UnequalWorkers(task, len(steps), seed=options.seed)
    workers.begin_local()
    workers._flushing = False
    found, whole = [], options.rounds * options.every * max(options.seconds)
    while (len(found) + 1) * seconds <= whole * 1.001:
        workers.round(steps, Level.parse(options.level), weighted)
        found.append(((len(found) + 1) * seconds, workers.held_out_loss()))
    return found


def reached(run: Sequence[tuple[float, float]], loss: float) -> str:
    return next((f"{at:.0f} s" for at, found in run if found <= loss), "not reached")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--seconds", type=lambda text: [float(one) for one in text.split(",")], default=[1.0, 1.0, 1.0, 3.0]
    )
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--level", default="int8")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    task = with_optimizer(make_task("gpt", batch=BATCH), "adamw:0.001")
    model = task.module()
    assert isinstance(model, CharGpt)
    characters = model.characters.num_embeddings
    task = replace(task, module=lambda: CharGpt(characters, WIDTH))
    fast, slow = min(options.seconds), max(options.seconds)
    by_time = [math.ceil(options.every * fast / one) for one in options.seconds]
    runs = {
        f"{options.every} steps a round": train(task, options, [options.every] * len(by_time), options.every * slow),
        f"{options.every * fast:g} s a round": train(task, options, by_time, options.every * fast),
        "the same, equal weights": train(task, options, by_time, options.every * fast, weighted=False),
    }
    goal = runs[f"{options.every} steps a round"][-1][1]
    print(f"steps by worker in a round by time: {by_time}")
    for name, run in runs.items():
        print(f"{name:26} loss {run[-1][1]:.3f} after {run[-1][0]:.0f} s, {goal:.3f} after {reached(run, goal)}")


if __name__ == "__main__":
    main()
