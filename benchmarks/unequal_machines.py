"""Local steps on machines of unequal speed: rounds of a number of steps, and rounds by time, after the same time.

    python benchmarks/unequal_machines.py [--seconds 1,1,1,3] [--every 20] [--rounds 30] [--level int8] [--seed 1]
                                          [--data-dir DIR] [--write]

Workers in one process (gradwire.simulate.local_workers), real gradients, the shipped weights and outer optimizer, in
virtual time, without a network. `--seconds` are those of each worker's step. A round of `--every` steps takes as long
as the slowest worker needs for them; a round by time has as many seconds as the fastest worker needs for `--every`
steps, and each worker makes the steps that begin in it; the round ends with the last of them. The third run gives every
worker the same weight. `--write` writes docs/results/unequal-machines.md.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from gradwire.level import Level
from gradwire.local_steps.round_agreement import RankProgress, shares
from gradwire.simulate.local_workers import LocalWorkers
from gradwire.simulate.tasks import CharGpt, TrainingTask, make_task, with_optimizer

# As in benchmarks/local_steps.py.
BATCH, WIDTH = 8, 64
RESULT = Path(__file__).parents[1] / "docs" / "results" / "unequal-machines.md"


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


@dataclass(frozen=True)
class Run:
    """`curve` has (time, held-out loss of the global weights) after each round."""

    name: str
    steps: tuple[int, ...]
    curve: tuple[tuple[float, float], ...]


def train(
    task: TrainingTask, options: argparse.Namespace, steps: Sequence[int], weighted: bool
) -> list[tuple[float, float]]:
    """(time, held-out loss of the global weights) after each round, until the time that all runs have."""
    seconds = round_seconds(steps, options.seconds)
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
    parser.add_argument("--data-dir", type=Path, help="a directory with tinyshakespeare/")
    parser.add_argument("--write", action="store_true", help="write docs/results/unequal-machines.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    task = with_optimizer(make_task("gpt", options.data_dir, BATCH), "adamw:0.001")
    model = task.module()
    assert isinstance(model, CharGpt)
    characters = model.characters.num_embeddings
    task = replace(task, module=lambda: CharGpt(characters, WIDTH))
    runs = runs_of(task, options)
    text = page(options, runs)
    print(text)
    if options.write:
        RESULT.write_text(text)


def runs_of(task: TrainingTask, options: argparse.Namespace) -> list[Run]:
    equal, by_time = [options.every] * len(options.seconds), steps_by_time(options.every, options.seconds)
    cases = {
        f"rounds of {options.every} steps": (equal, True),
        f"rounds of {options.every * min(options.seconds):g} s": (by_time, True),
        "the same, equal weights": (by_time, False),
    }
    return [
        Run(name, tuple(steps), tuple(train(task, options, steps, weighted)))
        for name, (steps, weighted) in cases.items()
    ]


def steps_by_time(every: int, seconds: Sequence[float]) -> list[int]:
    """The steps of each worker that begin before the fastest one has made `every`."""
    return [math.ceil(every * min(seconds) / one) for one in seconds]


def round_seconds(steps: Sequence[int], seconds: Sequence[float]) -> float:
    """Until the last worker has made its steps."""
    return max(count * one for count, one in zip(steps, seconds, strict=True))


def page(options: argparse.Namespace, runs: Sequence[Run]) -> str:
    goal = runs[0].curve[-1][1]
    first = f"python benchmarks/unequal_machines.py --rounds {options.rounds} --data-dir DIR --write"
    shown = ", ".join(f"{one:g}" for one in options.seconds)
    lines = [
        "# Local steps on machines of unequal speed",
        "",
        f"`{first}`: {len(options.seconds)} workers in one process whose steps take {shown} s of",
        f"virtual time, real gradients (the character GPT of width {WIDTH}, batches of {BATCH}, AdamW), level",
        f"{options.level}, the shipped outer optimizer, no network, seed {options.seed}. The loss is that of the",
        "global weights on held-out text, after about the same time; the last column is when a run first had the loss",
        "with which the first one ended.",
        "",
        "| rounds | steps by worker | a round takes | rounds made | loss at the end | first run's last loss after |",
        "|---|---|---|---|---|---|",
    ]
    for run in runs:
        at, loss = run.curve[-1]
        cells = (
            run.name, ", ".join(map(str, run.steps)), f"{round_seconds(run.steps, options.seconds):g} s",
            str(len(run.curve)), f"{loss:.3f} at {at:.0f} s", reached(run.curve, goal),
        )  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
