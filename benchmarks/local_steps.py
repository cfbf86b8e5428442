"""What local steps cost in steps: workers and steps between synchronisations, against synchronous training.

    python benchmarks/local_steps.py [--jobs gpt:adamw:0.001,cnn:sgd:0.05:0.9] [--workers 2,4] [--every 5,20] [--write]
                                     [--methods gradwire,torchft-diloco,post-local-sgd]

Workers in one process (gradwire.simulate.local_workers), real gradients, the shipped outer optimizer, no network. For
each job and number of workers the synchronous training first, then each number of local steps, with the same weights
and batches. Every worker has its own batch, so all runs of one number of workers see as many samples per step.

    loss       of the global weights on held-out data, at the last end of a round
    slowdown   how many times more steps to the same loss: at every evaluation of the second half of the run, the step
               over that at which synchronous training reached the loss (interpolated); their median. Where synchronous
               training never reached it, it counts with all its steps, so the slowdown is at most what is stated
    cosine     mean cosine between the pseudo-gradients of two workers, over the second half of the run
    method     gradwire's outer optimizer, or another library's, in the same arithmetic
               (harness/progress/local_peers.py)
    price      what decide/period_price.py assumes for it; its constants are fitted to this table

Every finished run is kept in docs/results/local-steps.json with --write, the page is written from the whole file, and
runs that are there are not repeated.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Final

import numpy as np
import torch

from gradwire.config import OuterConfig
from gradwire.decide.period_price import SPREAD, cosine_of, prior_price
from gradwire.errors import ConfigError
from gradwire.level import Level
from gradwire.simulate.local_workers import LocalWorkers
from gradwire.simulate.tasks import CharGpt, TrainingTask, make_task, with_optimizer
from harness.progress.local_peers import LEVEL, LOCAL_PEERS

RESULTS: Final = Path(__file__).parents[1] / "docs" / "results"
JOBS: Final = "gpt:adamw:0.001,cnn:sgd:0.05:0.9"
STEPS: Final = {"gpt": 500, "cnn": 400}
# Per worker; and the width of the GPT. Small, so that the table takes half an hour of one core. With batches of 8 the
# CNN's optimizer is close to unstable, synchronous or not.
BATCH: Final = {"gpt": 8, "cnn": 16}
WIDTH: Final = 64
# Steps between two evaluations, at least: they take time too.
EVALUATE: Final = 40


GRADWIRE: Final = "gradwire"


@dataclass(frozen=True)
class Setting:
    """What identifies a run. `every` 0: synchronous."""

    job: str
    workers: int
    every: int
    level: str
    seed: int
    steps: int
    method: str = GRADWIRE


@dataclass(frozen=True)
class Run(Setting):
    """One training. `curve` has [step, held-out loss]."""

    curve: list[list[float]] = field(default_factory=list)
    cosine: float | None = None

    @property
    def loss(self) -> float:
        return self.curve[-1][1]

    @property
    def setting(self) -> Setting:
        return Setting(self.job, self.workers, self.every, self.level, self.seed, self.steps, self.method)

    @property
    def group(self) -> tuple[str, int, int, int]:
        """What synchronous training must have in common with it."""
        return self.job, self.workers, self.seed, self.steps


def task_of(job: str, data: Path | None) -> TrainingTask:
    name, _, optimizer = job.partition(":")
    task = replace(with_optimizer(make_task(name, data, BATCH.get(name, 16)), optimizer), cosine=0)
    if name != "gpt":
        return task
    model = task.module()
    assert isinstance(model, CharGpt)
    characters = model.characters.num_embeddings
    return replace(task, module=lambda: CharGpt(characters, WIDTH))


def train(one: Setting, data: Path | None) -> Run:
    peer, level = LOCAL_PEERS.get(one.method), Level.parse(one.level)
    outer, synchronous = (peer.outer, peer.synchronous_steps(one.steps)) if peer else (OuterConfig(), 0)
    trainer = LocalWorkers(task_of(one.job, data), one.workers, seed=one.seed, outer=outer)
    curve: list[list[float]] = []
    cosines = []
    for step in range(1, one.steps + 1):
        alone = step - synchronous if one.every else 0
        # The averager of post-local SGD begins after its first step alone.
        boundary = alone <= 0 or alone % one.every == (1 % one.every if synchronous else 0)
        if alone == 1:
            trainer.begin_local()
        if alone <= 0:
            trainer.train(level)
        else:
            trainer.train_alone()
            if boundary:
                cosines.append((step, cosine_of(trainer.end_round(level).divergence, one.workers)))
        if boundary and (step == one.steps or step - (curve[-1][0] if curve else 0) >= EVALUATE):
            curve.append([step, round(trainer.held_out_loss(), 4)])
    late = [cosine for step, cosine in cosines if step > one.steps / 2]
    return Run(**asdict(one), curve=curve, cosine=round(statistics.fmean(late), 4) if late else None)


def slowdown(plain: Run, local: Run) -> float:
    steps, losses = (np.array(column) for column in zip(*plain.curve, strict=True))
    lowest = np.minimum.accumulate(losses)
    mine = list(accumulate((loss for _, loss in local.curve), min))
    late = [(step, loss) for (step, _), loss in zip(local.curve, mine, strict=True) if step >= local.steps / 2]
    reached = [float(np.interp(-loss, -lowest, steps)) for _, loss in late]
    return statistics.median(step / other for (step, _), other in zip(late, reached, strict=True))


def rows(runs: Sequence[Run]) -> Iterator[tuple[Run, float | None]]:
    """Runs in the order of the table, each with its slowdown; None for synchronous ones."""
    plain = {one.group: one for one in runs if not one.every and one.level == "off"}
    for one in sorted(runs, key=lambda run: (run.job, run.workers, run.every, run.method, run.level, run.seed)):
        if one.group in plain:
            yield one, slowdown(plain[one.group], one) if one is not plain[one.group] else None


def page(runs: Sequence[Run]) -> str:
    lines = [*HEAD]
    for one, slower in rows(runs):
        found = "-" if slower is None else f"{slower:.2f}"
        cosine = "-" if one.cosine is None else f"{one.cosine:.2f}"
        cells = (
            one.job, str(one.workers), str(one.every or 1), one.method if one.every else "synchronous", one.level,
            str(one.seed), str(one.steps), f"{one.loss:.3f}", cosine, found, price_of(one),
        )  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def price_of(one: Run) -> str:
    """Of gradwire's local steps."""
    return f"{prior_price(one.every, one.workers, ':sgd' not in one.job):.2f}" if one.method == GRADWIRE else "-"


HEAD: Final = (
    "# What local steps cost in steps",
    "",
    "`python benchmarks/local_steps.py --data-dir DIR --write`: workers in one process, real gradients, the",
    "shipped outer optimizer (Nesterov, 0.7 / 0.6), no network. Each worker has its own batch (8 sequences for",
    "the GPT of width 64, 16 images for the CNN), so all runs of one number of workers see the same samples. H =",
    "1 is synchronous training. `loss` is that of the global weights on held-out data (Shakespeare,",
    "Fashion-MNIST) after the last round. `slowdown` is how many times more steps were needed for the same loss:",
    "the median over the second half of the run. `cosine` is the mean cosine between two workers' changes of the",
    "weights in a round. `price` is what `sync_every = auto` starts from (decide/period_price.py). One run has",
    "the noise of one seed: about 0.1 in `slowdown`, more for the CNN with two workers, whose loss varies from",
    "evaluation to evaluation.",
    "",
    "Read off: with AdamW the price grows slowly with H, with SGD almost in proportion to H. More workers lose",
    "more. Five steps a round are mostly no cheaper than ten: a round is then shorter than what the inner momentum",
    "remembers, and inner and outer momentum add up. Two workers with AdamW and H <= 20 end 0.02 to 0.03 nats above",
    "synchronous training after as many steps. The prior is 1 + spread x (workers - 1) ^ share x H ^ growth, at",
    "most the number of workers. A running job corrects it by the cosine that it observes.",
    f"(spread, share, growth) are {SPREAD[0]} for AdamW and {SPREAD[1]} for SGD.",
    "",
    "`torchft-diloco` and `post-local-sgd` are the arithmetic of torchft's DiLoCo (outer Nesterov 0.7 / 0.9, as in",
    "its own tests) and of torch's post_localSGD_hook with PeriodicModelAverager (a tenth of the steps",
    "synchronous, then plain averages), computed here; neither library was run.",
    "",
    "| job | workers | H | method | level | seed | steps | loss | cosine | slowdown | price |",
    "|---|---|---|---|---|---|---|---|---|---|---|",
)


def load() -> list[Run]:
    path = RESULTS / "local-steps.json"
    return [Run(**row) for row in json.loads(path.read_text())] if path.is_file() else []


def save(runs: Sequence[Run]) -> None:
    (RESULTS / "local-steps.json").write_text(json.dumps([asdict(run) for run in runs], indent=1) + "\n")
    (RESULTS / "local-steps.md").write_text(page(runs))


def options_of() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", default=JOBS, help="task:optimizer:rate[:momentum], by comma")
    parser.add_argument("--workers", default="2,4,8")
    parser.add_argument("--every", default="5,10,20,50,100")
    parser.add_argument("--methods", default=GRADWIRE, help=f"{GRADWIRE}, {', '.join(LOCAL_PEERS)}, by comma")
    parser.add_argument("--levels", default="off", help="of the pseudo-gradients")
    parser.add_argument("--steps", type=int, help="default: 500 for gpt, 400 for cnn")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data-dir", type=Path, help="a directory with tinyshakespeare/ and fashion-mnist/")
    parser.add_argument("--write", action="store_true", help="add to docs/results/local-steps.json and write its page")
    return parser.parse_args()


def settings(options: argparse.Namespace) -> Iterator[Setting]:
    methods = _words(options.methods)
    unknown = [name for name in methods if name != GRADWIRE and name not in LOCAL_PEERS]
    if unknown:
        raise ConfigError(f"methods: {unknown[0]!r} is not one of {', '.join((GRADWIRE, *LOCAL_PEERS))}")
    local = [
        (int(every), level, method)
        for every in _words(options.every)
        for method in methods
        for level in (_words(options.levels) if method == GRADWIRE else [LEVEL])
    ]
    for workers in _words(options.workers):
        for job in _words(options.jobs):
            steps = options.steps or STEPS.get(job.partition(":")[0], 500)
            for every, level, method in [(0, "off", GRADWIRE), *local]:
                yield Setting(job, int(workers), every, level, options.seed, steps, method)


def main() -> None:
    options = options_of()
    torch.set_num_threads(1)
    known = load()
    for one in settings(options):
        if any(run.setting == one for run in known):
            continue
        begin = time.monotonic()
        known.append(train(one, options.data_dir))
        took = time.monotonic() - begin
        print(f"{one}: loss {known[-1].loss:.3f}, {took:.0f} s", file=sys.stderr, flush=True)
        if options.write:
            save(known)
    if options.write:
        save(known)
    print(page(known))


def _words(text: str) -> list[str]:
    return text.split(",")


if __name__ == "__main__":
    main()
