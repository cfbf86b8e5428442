"""What lossiness costs in steps: models, optimizers and levels, against the price that `auto` would assume.

    python benchmarks/lossiness.py [--jobs gpt:adamw:0.001,cnn:sgd:0.05:0.9] [--levels int4,topk:0.1+int8] [--write]

Two workers in one process (gradwire.simulate), real gradients and codecs, no network. Other models, widths and numbers
of workers: harness/wide_tasks.py. For each job the uncompressed training first, then each level with the same weights
and batches. `slowdown` is how many times more steps a level took to the loss that it has after nine tenths of its steps
than the uncompressed training, by the trend of the loss without the noise that batches add to both
(harness/progress/curves.py). `kept` is the share of the energy of gradient + residual that a step sent, over the second
half of the run. `price` is what decide/price.py makes of it: its constants are fitted to this table.

Every run is appended to docs/results/lossiness.json with --write, and the page is written from the whole file.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from gradwire.decide.lowrank_price import price_of_waiting
from gradwire.decide.price import ADAPTIVE, EXACT, FORMATS, LEAST_KEPT, PLAIN
from gradwire.level import Level
from gradwire.simulate.tasks import with_optimizer
from gradwire.simulate.workers import BucketTraffic, Workers
from gradwire.types import Bucket
from harness.progress.curves import Curve, noise_of
from harness.wide_tasks import sized_task

RESULTS = Path(__file__).parents[1] / "docs" / "results"
JOBS = "gpt:adamw:0.001,mlp:adam:0.001,cnn:adam:0.001,gpt:sgd:0.1:0.9,cnn:sgd:0.05:0.9,resnet:sgd:0.1:0.9"
LEVELS = "int8,int4,int2,lowrank:32+int4,lowrank:4,topk:0.1+int8,topk:0.03+int8,topk:0.01+int8,topk:0.003+int8"
# The share of the steps after which a level is compared: at the very end a trend knows one side only.
MEASURED_AT = 0.9


@dataclass(frozen=True)
class Run:
    """One level of one job."""

    job: str
    level: str
    seed: int
    steps: int
    loss: float
    kept: float
    slowdown: float


class MeasuredWorkers(Workers):
    """Workers that measure how much energy rank 0's first encoding keeps: of gradient + residual, and of what the step
    before had left of them."""

    energies: list[tuple[float, float]]

    def _synchronise(self, bucket: Bucket, gradients: list[Tensor], level: Level) -> BucketTraffic:
        feedback = self.feedback[0]
        left = feedback.worker(bucket, gradients[0].device) if feedback.pending(bucket) else torch.zeros(1)
        self.energies.append((float((gradients[0] + left).square().sum()), float(left.square().sum())))
        return super()._synchronise(bucket, gradients, level)


def train(job: str, level: str, seed: int, steps: int, data: Path | None) -> tuple[list[float], float]:
    """Losses by step, and the energy kept."""
    name, _, optimizer = job.partition(":")
    sized = sized_task(name, data)
    task = replace(with_optimizer(sized.task, optimizer), cosine=0)
    workers = MeasuredWorkers(task, sized.workers, seed=seed)
    workers.energies = []
    losses: list[float] = []
    while len(losses) < steps and (not losses or math.isfinite(losses[-1])):
        losses.append(workers.train(Level.parse(level)).loss)
    late = workers.energies[len(workers.energies) // 2 :]
    return losses, 1 - sum(left for _, left in late) / max(sum(before for before, _ in late), 1e-30)


def slowdown(plain: list[float], lossy: list[float]) -> float:
    """Steps of the lossy training to a loss near its end / steps of the plain one to that loss; nan if the plain one
    did not reach that loss, inf if the lossy training diverged."""
    if not all(map(math.isfinite, lossy)):
        return math.inf
    mine, other = (curve(losses, plain) for losses in (lossy, plain))
    target = mine.lowest[round(MEASURED_AT * len(lossy)) - 1]
    took, reached = mine.time_to(target), other.time_to(target)
    assert took is not None
    return math.nan if reached is None else took / reached


def curve(losses: list[float], plain: list[float]) -> Curve:
    """The loss against steps, without the noise of the batches."""
    return Curve.of(range(1, len(losses) + 1), losses, noise_of(plain))


def price(job: str, level: Level, kept: float) -> float:
    """What decide/price.py assumes for a level that keeps this much."""
    kind = 1 if ":sgd" in job else 0
    if level.select == "lowrank":
        return price_of_waiting(1 / max(kept, LEAST_KEPT) - 1)
    rounding = FORMATS.get(level.values, EXACT)[kind]
    return rounding * (1 + (ADAPTIVE, PLAIN)[kind] * math.log(1 / max(kept, LEAST_KEPT))) if level.sparse else rounding


def page(runs: list[Run]) -> str:
    lines = [
        "# What lossiness costs in steps",
        "",
        "`python benchmarks/lossiness.py --write`: two workers in one process, real gradients and codecs, no network.",
        "`slowdown` is how many times more steps a level took to the loss after nine tenths of its steps than",
        "uncompressed training, by the trend of the loss without the noise that batches add to both;",
        "`kept` is the share of the energy of gradient + residual that a step sends; `price` is what `auto` assumes",
        "(decide/price.py; its constants are fitted to this table). -: uncompressed training did not reach that loss,",
        "so the level was no slower. A run with fewer steps than its neighbours diverged. One run has the noise of",
        "one seed. The data are Shakespeare and Fashion-MNIST (`--data-dir`).",
        "",
        "| job | level | steps | loss | kept | slowdown | price |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in sorted(runs, key=lambda run: (run.job, run.level, run.seed)):
        found = "-" if math.isnan(one.slowdown) else f"{one.slowdown:.2f}"
        cost = price(one.job, Level.parse(one.level), one.kept)
        cells = (one.job, one.level, str(one.steps), f"{one.loss:.3f}", f"{one.kept:.3f}", found, f"{cost:.2f}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def load() -> list[Run]:
    path = RESULTS / "lossiness.json"
    rows = json.loads(path.read_text()) if path.is_file() else []
    return [Run(**{**row, "slowdown": math.nan if row["slowdown"] is None else row["slowdown"]}) for row in rows]


def save(runs: list[Run]) -> None:
    rows = [asdict(run) | {"slowdown": None if math.isnan(run.slowdown) else round(run.slowdown, 3)} for run in runs]
    (RESULTS / "lossiness.json").write_text(json.dumps(rows, indent=1) + "\n")
    (RESULTS / "lossiness.md").write_text(page(runs))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", default=JOBS, help="task:optimizer:rate[:momentum], separated by commas")
    parser.add_argument("--levels", default=LEVELS)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--data-dir", type=Path, help="a directory with tinyshakespeare/ and fashion-mnist/")
    parser.add_argument("--write", action="store_true", help="add to docs/results/lossiness.json and write its page")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for seed in range(1, options.seeds + 1):
        for job in options.jobs.split(","):
            plain, _ = train(job, "off", seed, options.steps, options.data_dir)
            for level in options.levels.split(","):
                lossy, kept = train(job, level, seed, options.steps, options.data_dir)
                loss = curve(lossy, plain).losses[-1]
                run = Run(job, level, seed, len(lossy), loss, kept, slowdown(plain, lossy))
                cost = price(job, Level.parse(level), kept)
                found = f"loss {run.loss:.3f}, kept {kept:.3f}, slowdown {run.slowdown:.2f}"
                print(f"{job} {level}: {found}, price {cost:.2f}", flush=True)
                if options.write:
                    same = (job, level, seed)
                    save([one for one in load() if (one.job, one.level, one.seed) != same] + [run])


if __name__ == "__main__":
    main()
