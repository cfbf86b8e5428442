"""Does `auto` ever ruin a training? Jobs drawn at random, trained under `auto` and uncompressed, in virtual time.

    python benchmarks/ruin.py [--jobs 60] [--first 1] [--data-dir DIR] [--only-write] [--write]

Each job draws a model, an optimizer with a learning rate that may be too hot, 2 to 8 hosts, a network slow enough that
compression pays, whether the loss is noted, and whether `auto` may trade steps for time (`extra_steps` of 1 instead of
0.05). Gradients and codecs are real, network and clock are simulated. A run is ruined if its loss ends above 0.9 of the
first or is not finite. Where the uncompressed run is ruined too, the job itself diverges, and compression cannot be
blamed for it.

Finished jobs are in benchmarks/records/ruin; the benchmark continues from there.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

import torch

from gradwire.decide.registry import make_controller
from gradwire.simulate.training import SimulatedJob, SimulatedStep, TrainingSimulation
from harness.facts import machine_facts
from harness.progress.curves import Curve, noise_of
from harness.progress.fingerprint import CONTROL, built_in_text, code_of, torch_of
from harness.progress.ledger import Ledger, Record, Settings
from harness.progress.networks import network_of
from harness.progress.runs import runs_of
from harness.progress.tasks import task_of

ROOT: Final = Path(__file__).parents[1]
RECORDS: Final = Path(__file__).parent / "records" / "ruin"
PAGE: Final = ROOT / "docs" / "results" / "ruin.md"
STEPS: Final = 150
# A GPT's step takes as long as ten of the others'.
MODELS: Final = ("mlp", "mlp", "mlp", "deep", "deep", "deep", "cnn", "cnn", "cnn", "gpt")
OPTIMIZERS: Final = (
    "sgd:0.02:0.9", "sgd:0.05:0.9", "sgd:0.1:0.9", "sgd:0.2:0.9", "sgd:0.3", "adam:0.001", "adam:0.003", "adam:0.01",
    "adamw:0.001", "adamw:0.003",
)  # fmt: skip
CHANGING: Final = ("drop", "flap", "rising", "lte")
# Mbit/s and milliseconds, drawn evenly in the logarithm.
RATES: Final = (1, 200)
TRIPS: Final = (1, 300)
LOSSES: Final = ("0", "0.1", "1", "3")
TRADED: Final = 1.0
HEAD: Final = (
    "job", "task", "hosts", "network", "transport", "noted", "trade", "first loss", "plain", "auto", "speed", "guarded",
    "levels",
)  # fmt: skip


def draw(number: int, data: bool) -> Settings:
    rng = random.Random(number)
    steady = f"{_between(rng, RATES)}mbit-{_between(rng, TRIPS)}ms-{rng.choice(LOSSES)}%"
    return {
        "kind": "ruin", "number": number, "steps": STEPS, "data": data,
        "task": f"{rng.choice(MODELS)}-{rng.choice(OPTIMIZERS)}", "hosts": rng.choice((2, 2, 4, 8)),
        "network": rng.choice(CHANGING) if rng.random() < 0.25 else steady,
        "wire": rng.choice(("group", "group", "ltp")), "note_loss": rng.random() < 0.5, "trade": rng.random() < 0.5,
    }  # fmt: skip


def _between(rng: random.Random, ends: tuple[int, int]) -> int:
    return round(math.exp(rng.uniform(*map(math.log, ends))))


def train(one: Settings, directory: Path | None, level: str) -> list[SimulatedStep]:
    task = task_of(one["task"], one["steps"], directory)
    network = network_of(one["network"], one["hosts"], one["steps"] * task.compute, directory)
    job = SimulatedJob(task, network, level, one["wire"], one["number"], note_loss=one["note_loss"])
    controller = make_controller(level, extra_steps=TRADED) if level == "auto" and one["trade"] else None
    steps = []
    for step in islice(TrainingSimulation(job, controller), one["steps"]):
        steps.append(step)
        if not math.isfinite(step.loss):
            break
    return steps


def run(one: Settings, directory: Path | None) -> Record:
    plain, auto = (train(one, directory, level) for level in ("off", "auto"))
    noise = noise_of([step.loss for step in plain])
    own, other = (Curve.of([step.seconds for step in ran], [step.loss for step in ran], noise) for ran in (auto, plain))
    return {
        "first": own.first, "auto": _finite(own.losses[-1]), "plain": _finite(other.losses[-1]),
        "auto_ruined": own.ruined, "plain_ruined": other.ruined, "speed": other.end / own.end,
        "levels": runs_of([str(step.level) for step in auto]), "guarded": sum(step.guarded for step in auto),
    }  # fmt: skip


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def page(found: Sequence[Record], command: str) -> str:
    facts = machine_facts()
    ruined = [one for one in found if one["auto_ruined"] and not one["plain_ruined"]]
    by_itself = sum(one["plain_ruined"] for one in found)
    saved = sum(one["plain_ruined"] and not one["auto_ruined"] for one in found)
    healthy = [one for one in found if not one["plain_ruined"] and one["auto"] is not None]
    parts = {
        "not to trade": [one for one in healthy if not one["settings"]["trade"]],
        "to trade": [one for one in healthy if one["settings"]["trade"]],
    }
    sizes = " ".join(f"{len(own)} where `auto` was {name}: {_apart(own)}." for name, own in parts.items() if own)
    lines = [
        "# Ruined trainings", "", f"    {command}", "",
        f"{len(found)} jobs drawn at random, {STEPS} steps each, in virtual time: models, optimizers (with hot "
        "learning rates), hosts, slow, lossy, far and changing networks. A run is ruined if its loss ends above "
        f"0.9 of the first or is not finite. gradwire {facts['revision']}, {facts['time'][:10]}.", "",
        f"**`auto` ruined {len(ruined)} of the {len(found) - by_itself} jobs that train uncompressed.** "
        f"{by_itself} jobs diverge uncompressed as well; `auto` trained {saved} of those. In "
        f"{sum(one['guarded'] > 0 for one in found)} jobs the accuracy guard acted.", "",
        "The last loss of `auto` over that of uncompressed training after the same steps, median and worst: " + sizes,
        "", f"| {' | '.join(HEAD)} |", f"| {' | '.join(['---'] * len(HEAD))} |", *map(_row, found),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _apart(own: Sequence[Record]) -> str:
    ratios = [one["auto"] / one["plain"] for one in own]
    return f"{statistics.median(ratios):.2f} and {max(ratios):.2f}"


def _row(one: Record) -> str:
    job, levels = one["settings"], one["levels"]
    counts: dict[str, int] = {}
    for place, count in levels["order"]:
        counts[levels["kinds"][place]] = counts.get(levels["kinds"][place], 0) + count
    used = sorted(counts, key=lambda name: -counts[name])[:3]
    losses = [_loss(one["first"], False), *(_loss(one[name], one[f"{name}_ruined"]) for name in ("plain", "auto"))]
    noted, trade = ("yes" if job[name] else "no" for name in ("note_loss", "trade"))
    cells = [
        str(job["number"]), job["task"], str(job["hosts"]), job["network"], job["wire"], noted, trade, *losses,
        f"{one['speed']:.1f}x", str(one["guarded"]), ", ".join(f"`{name}` {counts[name]}" for name in used),
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _loss(value: float | None, ruined: bool) -> str:
    return ("not finite" if value is None else f"{value:.3f}") + (" (ruined)" if ruined else "")


def code_for(one: Settings) -> str:
    text = f" text {built_in_text()}" if one["task"].startswith("gpt") and not one["data"] else ""
    own = code_of(("tasks.py", "networks.py"), Path(__file__).parent / "harness" / "progress")
    return f"{code_of(CONTROL)}{own} torch {torch_of()}{text}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=60)
    parser.add_argument(
        "--first", type=int, default=1, help="the number of the first job, which is what it is drawn by"
    )
    parser.add_argument("--data-dir", type=Path, default=None, help="fashion-mnist/ and tinyshakespeare/")
    parser.add_argument("--runs", type=Path, default=RECORDS, help="folder of finished jobs")
    parser.add_argument("--only-write", action="store_true", help="run nothing; write from what is there")
    parser.add_argument("--write", action="store_true", help="write docs/results/ruin.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    facts: dict[str, Any] = machine_facts()
    ledger = Ledger(options.runs, made={"made": [facts["revision"], facts["time"][:10]]})
    found = []
    for number in range(options.first, options.first + options.jobs):
        one = draw(number, options.data_dir is not None)
        record = ledger.get(one, code_for(one))
        if record is None and not options.only_write:
            record = ledger.add(one, code_for(one), run(one, options.data_dir))
            print(_row(record), file=sys.stderr, flush=True)
        if record is not None:
            found.append(record)
    text = page(found, f"python benchmarks/ruin.py --jobs {options.jobs} --write")
    if options.write:
        PAGE.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
