"""Does `auto` ever ruin a training? Jobs drawn at random, trained under `auto` and uncompressed, in virtual time.

    python benchmarks/ruin.py [--jobs 60] [--first 1] [--data-dir DIR] [--only-write] [--write]

Each job draws a model, an optimizer with a learning rate that may be too hot, 2 to 8 hosts, a network slow enough that
compression pays, whether the loss is noted, and whether `auto` may trade steps for time (`extra_steps` of 1 instead of
0.05). Gradients and codecs are real, network and clock are simulated. A run is ruined if its loss ends above 0.9 of the
first or is not finite. A hot learning rate ruins uncompressed trainings as well, with one seed and not with the next.
So where only `auto` was ruined, the job is also trained uncompressed with four other seeds: if one of them is ruined,
the job itself is unstable, and compression is not to blame.

Finished jobs are in benchmarks/records/ruin; the benchmark continues from there.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
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
# Uncompressed trainings with other weights and batches, of a job that only auto ruined.
OTHER_SEEDS: Final = 4
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


def train(one: Settings, directory: Path | None, level: str, seed: int = 0) -> list[SimulatedStep]:
    """`seed` is added to the job's number."""
    task = task_of(one["task"], one["steps"], directory)
    network = network_of(one["network"], one["hosts"], one["steps"] * task.compute, directory)
    job = SimulatedJob(task, network, level, one["wire"], one["number"] + seed, note_loss=one["note_loss"])
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


def run_again(one: Settings, directory: Path | None) -> Record:
    """The job uncompressed, with another seed."""
    ran = train(one, directory, "off", 1000 * one["again"])
    curve = Curve.of([step.seconds for step in ran], [step.loss for step in ran])
    return {"plain": _finite(curve.losses[-1]), "plain_ruined": curve.ruined}


def only_auto(one: Record) -> bool:
    return bool(one["auto_ruined"] and not one["plain_ruined"])


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def page(found: Sequence[Record], again: Mapping[int, Sequence[Record]], command: str) -> str:
    counts = [sum(one[f"{name}_ruined"] for one in found) for name in ("auto", "plain")]
    saved = sum(one["plain_ruined"] and not one["auto_ruined"] for one in found)
    lone = [one["settings"]["number"] for one in found if only_auto(one)]
    blamed = [number for number in lone if not any(other["plain_ruined"] for other in again.get(number, ()))]
    lines = [
        "# Ruined trainings", "", f"    {command}", "",
        f"{len(found)} jobs drawn at random, {STEPS} steps each, in virtual time: models, optimizers (with hot "
        "learning rates), hosts, slow, lossy, far and changing networks. A run is ruined if its loss ends above "
        f"0.9 of the first or is not finite. Made by gradwire {_revisions(found)}.", "",
        f"**`auto` ruined {counts[0]} of {len(found)} jobs, uncompressed training {counts[1]}; {len(blamed)} of "
        f"`auto`'s are jobs that train uncompressed.** In {saved} jobs only the uncompressed run was ruined, in "
        f"{len(lone)} only `auto`'s. {' '.join(_seeds(number, again.get(number, ())) for number in lone)}".rstrip(), "",
        f"The accuracy guard acted in {sum(one['guarded'] > 0 for one in found)} jobs.", "",
        "The last loss of `auto` over that of uncompressed training after the same steps, where neither was ruined; "
        "short runs with hot learning rates differ by their noise in both directions:", "", *_sizes(found), "",
        f"| {' | '.join(HEAD)} |", f"| {' | '.join(['---'] * len(HEAD))} |", *map(_row, found),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _revisions(found: Sequence[Record]) -> str:
    """Of the jobs, with their number."""
    made = [" of ".join(one["made"]) for one in found]
    return "; ".join(f"{name} ({made.count(name)} jobs)" for name in dict.fromkeys(made))


def _seeds(number: int, again: Sequence[Record]) -> str:
    ruined = sum(one["plain_ruined"] for one in again)
    return f"Job {number} was ruined uncompressed with {ruined} of {len(again)} other seeds."


def _sizes(found: Sequence[Record]) -> list[str]:
    healthy = [one for one in found if not one["plain_ruined"] and not one["auto_ruined"]]
    parts = {
        "no trade allowed": [one for one in healthy if not one["settings"]["trade"]],
        "trade allowed (`extra_steps = 1.0`)": [one for one in healthy if one["settings"]["trade"]],
    }
    rows = [f"| {name} | {len(own)} | {_apart(own)} |" for name, own in parts.items() if own]
    return ["| | jobs | least | median | greatest |", "|---|---|---|---|---|", *rows]


def _apart(own: Sequence[Record]) -> str:
    ratios = [one["auto"] / one["plain"] for one in own]
    return f"{min(ratios):.2f} | {statistics.median(ratios):.2f} | {max(ratios):.2f}"


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
    parser.add_argument("--any-code", action="store_true", help="use finished jobs of other code too")
    parser.add_argument("--only-write", action="store_true", help="run nothing; write from what is there")
    parser.add_argument("--write", action="store_true", help="write docs/results/ruin.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    facts: dict[str, Any] = machine_facts()
    ledger = Ledger(options.runs, any_code=options.any_code, made={"made": [facts["revision"], facts["time"][:10]]})

    def done(one: Settings, work: Callable[[Settings, Path | None], Record]) -> list[Record]:
        record = ledger.get(one, code_for(one))
        if record is None and not options.only_write:
            record = ledger.add(one, code_for(one), work(one, options.data_dir))
            print(f"{one['kind']} {one['number']} {one['task']} on {one['network']}", file=sys.stderr, flush=True)
        return [] if record is None else [record]

    numbers = range(options.first, options.first + options.jobs)
    jobs = [draw(number, options.data_dir is not None) for number in numbers]
    found = [record for one in jobs for record in done(one, run)]
    again = {
        one["settings"]["number"]: [
            record
            for seed in range(1, OTHER_SEEDS + 1)
            for record in done(one["settings"] | {"kind": "again", "again": seed}, run_again)
        ]
        for one in found
        if only_auto(one)
    }
    data = "" if options.data_dir is None else " --data-dir DIR"
    text = page(found, again, f"python benchmarks/ruin.py --jobs {options.jobs}{data} --write")
    if options.write:
        PAGE.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
