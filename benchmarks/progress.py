"""Progress: loss against seconds and against steps, of every fixed level and every controller, on every network.

    python benchmarks/progress.py --data-dir DIR [--tasks gpt,mlp] [--nets lte,drop] [--seeds 3] [--write] [--quick]
    python benchmarks/progress.py --data-dir DIR --lab [--write]

Everything runs in virtual time (simulate/training.py): real gradients, codecs and controllers, a simulated network and
clock. A fixed level's losses do not depend on the network, so each is trained once and timed on every network; only
controllers are trained on each of them. Every finished run is added to a file of the repository (benchmarks/records):
the benchmark continues where it was, also on another machine, if what was run is committed. The page can be written
from what is there (--only-write), from runs of other code too (--any-code; it says which). Seeds are run one after the
other: after the first one the table is complete, with one seed. `--lab` runs a few cells in the lab, with real ranks
and dilated time, and compares them with the same runs in virtual time.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from gradwire.decide.ladder import LADDER
from gradwire.errors import GradwireError
from harness.facts import machine_facts
from harness.progress import page, tables
from harness.progress.cells import AUTO, AUTO_LOCAL, PLAIN, TRADE
from harness.progress.lab_check import LabCheck
from harness.progress.ledger import Ledger
from harness.progress.local_peers import local_steps_of
from harness.progress.networks import NETWORKS, needs_data, network_of
from harness.progress.plot import plot
from harness.progress.pool import perform
from harness.progress.runs import Setup, Work, setup_of, timing
from harness.progress.summary import Collected, Contestants, Place, of_other_code, summarise
from harness.progress.tasks import NEED_DATA, TASKS, task_of
from harness.progress.torch_hooks import TORCH_HOOKS, hook_of

ROOT: Final = Path(__file__).parents[1]
RECORDS: Final = Path(__file__).parent / "records" / "progress"
FIXED: Final = tuple(str(rung.level) for rung in LADDER)
ADAPTIVE: Final = (AUTO, TRADE, "netsense", "dc2")
STEPS: Final = 1000
LOCAL_HELP: Final = "with local steps: local:20 (20 at int8), auto-local, torchft-diloco:20, post-local-sgd:20"
QUICK: Final[dict[str, Any]] = {
    "tasks": "gpt,cnn-0.05,mlp", "nets": "20mbit,lan1g,wan-us-eu,lossy-wifi,lte,drop", "seeds": 1, "steps": 200,
    "runs": ROOT / "runs" / "progress",  # the records of the repository are those of the full table
}  # fmt: skip
# Cells in which a fixed level is also run whole, to check the composition: a lossy, a varying and a distant network.
CHECKS: Final = (("mlp", "lossy-wifi", "int8"), ("cnn-0.05", "lte", "topk:0.01+int8"), ("gpt", "wan-us-eu", "int4"))


class Benchmark:
    """What is to be run, in the order of its use, and what has been."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.setup = Setup(options.steps, options.hosts, options.transport, options.note_loss, options.data_dir)
        known = options.data_dir is not None
        self.tasks = [name for name in options.tasks.split(",") if known or name not in NEED_DATA]
        self.networks = [name for name in options.nets.split(",") if known or not needs_data(name)]
        self.left_out = [
            name
            for name in (*options.tasks.split(","), *options.nets.split(","))
            if name not in (*self.tasks, *self.networks)
        ]
        names = (options.fixed, options.hooks, options.controllers, options.local)
        fixed, hooks, adaptive, local = ([name for name in text.split(",") if name] for text in names)
        if AUTO_LOCAL in local:
            local.remove(AUTO_LOCAL)
            adaptive.append(AUTO_LOCAL)
        self.who = Contestants(fixed, hooks, adaptive, local)
        self.seeds = list(range(1, options.seeds + 1))
        self.peer_seeds: int = options.peer_seeds
        facts = machine_facts()
        made = {"made": [facts["revision"], facts["time"][:10]]}
        self.ledger = Ledger(options.runs, any_code=options.any_code, made=made)
        self.lab = LabCheck.of(self.setup, self.ledger, options.dilate)
        self.jobs: int = options.jobs
        self.only_trainings: bool = options.only_trainings
        self.records = Collected()
        for name in self.who.hooks:
            hook_of(name)
        for name in self.who.local:
            local_steps_of(name)
        for name in self.tasks:
            task = task_of(name, options.steps, options.data_dir)
            for network in self.networks:
                network_of(network, options.hosts, options.steps * task.compute, options.data_dir)

    @property
    def places(self) -> list[Place]:
        return [(task, network) for task in self.tasks for network in self.networks]

    def trainings(self, seed: int) -> list[Work]:
        kinds = dict.fromkeys(self.who.fixed, "train") | dict.fromkeys(self.who.local, "local")
        if seed <= self.peer_seeds:
            kinds |= dict.fromkeys(self.who.hooks, "peer")
        return [
            Work(self.setup.settings(kind, task=task, level=name, seed=seed), self.setup)
            for task in self.tasks
            for name, kind in kinds.items()
        ]

    def wholes(self, seed: int) -> list[Work]:
        names = [name for name in self.who.adaptive if seed <= self.peer_seeds or name in (AUTO, AUTO_LOCAL)]
        return [self.whole(task, network, name, seed) for task, network in self.places for name in names]

    def checks(self) -> list[Work]:
        return [
            self.whole(task, network, level, 1)
            for task, network, level in CHECKS
            if (task, network) in self.places and level in self.who.fixed
        ]

    def whole(self, task: str, network: str, level: str, seed: int) -> Work:
        return Work(self.setup.settings("whole", task=task, network=network, level=level, seed=seed), self.setup)

    def run(self) -> Iterator[tuple[Work, dict[str, Any]]]:
        for seed in self.seeds:
            yield from self._run_seed(seed)

    def _run_seed(self, seed: int) -> Iterator[tuple[Work, dict[str, Any]]]:
        works = self.trainings(seed)
        if not self.only_trainings:
            works += self.wholes(seed) + (self.checks() if seed == 1 else [])
        yield from self._keep(perform(works, self.ledger, self.jobs))
        yield from self._keep(perform(self.timings(seed), self.ledger, self.jobs))
        self.place_times(seed)

    def timings(self, seed: int) -> list[Work]:
        """Each different one once."""
        found = {}
        for (task, _, own_seed), trained in self.records.trained.items():
            for network in self.networks if own_seed == seed else ():
                work = timing(self.setup, task, network, seed, trained)
                found[json.dumps(work.settings, sort_keys=True)] = work
        return list(found.values())

    def place_times(self, seed: int) -> None:
        for (task, level, own_seed), trained in self.records.trained.items():
            for network in self.networks if own_seed == seed else ():
                work = timing(self.setup, task, network, seed, trained)
                timed = self.ledger.get(work.settings, work.code)
                if timed is not None:
                    self.records.timed[task, network, level, seed] = timed

    def _keep(self, done: Iterator[tuple[Work, dict[str, Any]]]) -> Iterator[tuple[Work, dict[str, Any]]]:
        for work, record in done:
            self._place(work.settings, record)
            yield work, record

    def _place(self, one: dict[str, Any], record: dict[str, Any]) -> None:
        if one["kind"] in ("train", "peer", "local"):
            self.records.trained[one["task"], one["level"], one["seed"]] = record
        elif one["kind"] == "whole":
            kept = self.records.whole if one["level"] in self.who.adaptive else self.records.checks
            kept[one["task"], one["network"], one["level"], one["seed"]] = record

    def load(self) -> None:
        """Place what the ledger has, and run nothing."""
        for seed in self.seeds:
            for work in self.trainings(seed) + self.wholes(seed) + self.checks():
                record = self.ledger.get(work.settings, work.code)
                if record is not None:
                    self._place(work.settings, record)
            self.place_times(seed)

    def result(self, command: str) -> dict[str, Any]:
        return {
            "case": "progress", "command": command, "machine": machine_facts(), "setup": setup_of(self.setup),
            "seeds": self.seeds, "of_other_code": of_other_code(self.ledger), "left_out": self.left_out, "plots": [],
            "lab": self.lab.rows(),
            **summarise(self.records, self.places, self.seeds, self.who),
        }  # fmt: skip

    def write(self, folder: Path, result: dict[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for task in self.tasks:
            cells = {cell["network"]: cell for cell in result["cells"] if cell["task"] == task}
            if cells:
                result["plots"].append(f"progress-{task}.png")
                self._plot(folder / result["plots"][-1], task, cells)
        (folder / "progress.json").write_text(json.dumps(result, indent=1) + "\n")
        (folder / "progress.md").write_text(page.markdown(result))

    def _plot(self, path: Path, task: str, cells: dict[str, Any]) -> None:
        """auto with and without a trade, both best fixed levels of the last target, plain DDP and the fastest of
        torch's hooks, at the first seed."""
        curves, shown = {}, {}
        for network, cell in cells.items():
            seed = cell["seeds"][0]
            curves[network] = self.records.curves((task, network), [seed], self.who)[seed]
            last = cell["targets"][-1]
            names = [AUTO, TRADE, last["best"]["other"], last["keeping"]["other"], PLAIN]
            hooks = sorted(self.who.hooks, key=lambda name: last["seconds"][name][0] or math.inf)[:1]
            shown[network] = [name for name in dict.fromkeys([*names, *hooks]) if name in curves[network]]
        plot(path, task, curves, shown)


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=None, help="fashion-mnist/, cifar10/, tinyshakespeare/, net/")
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--nets", default=",".join(NETWORKS))
    parser.add_argument("--fixed", default=",".join(FIXED), help="fixed levels; off is plain DDP")
    parser.add_argument("--hooks", default=",".join(TORCH_HOOKS), help="torch's communication hooks, as peers")
    parser.add_argument("--controllers", default=",".join(ADAPTIVE))
    parser.add_argument("--local", default="", help=LOCAL_HELP)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--peer-seeds", type=int, default=1, help="seeds of torch's hooks, netsense, dc2 and a trade")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--transport", default="group", choices=["group", "tcp", "ltp"])
    parser.add_argument("--note-loss", action="store_true", help="controllers are told the loss")
    parser.add_argument("--quick", action="store_true", help="3 tasks, 6 networks, 200 steps, one seed")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes")
    parser.add_argument("--runs", type=Path, default=RECORDS, help="folder of finished runs")
    parser.add_argument("--tidy", action="store_true", help="drop runs that later ones replace from --runs, and end")
    parser.add_argument("--any-code", action="store_true", help="use finished runs of other code too")
    parser.add_argument("--only-trainings", action="store_true", help="of fixed levels: a new controller keeps them")
    parser.add_argument("--only-write", action="store_true", help="run nothing; write from what is in --runs")
    parser.add_argument("--lab", action="store_true", help="run the cells of the lab; the rest is only written")
    parser.add_argument("--dilate", type=float, default=8.0, help="of --lab: the factor of dilated time")
    parser.add_argument("--out", type=Path, default=None, help="write progress.json, .md and plots here")
    parser.add_argument("--write", action="store_true", help="--out docs/results")
    if parser.parse_args(arguments).quick:
        parser.set_defaults(**QUICK)
    options = parser.parse_args(arguments)
    if options.write:
        options.out = ROOT / "docs" / "results"
    if AUTO not in options.controllers.split(",") or PLAIN not in options.fixed.split(","):
        parser.error(f"--controllers needs {AUTO}, and --fixed needs {PLAIN}")
    return options


def main() -> None:
    options = options_of()
    if options.tidy:
        print(f"{Ledger(options.runs).tidy()} lines dropped")
        return
    try:
        benchmark = Benchmark(options)
        if options.only_write or options.lab:
            benchmark.load()
        begin = time.monotonic()
        for what in _done(benchmark, options):
            print(f"{time.monotonic() - begin:7.0f} s  {what}", file=sys.stderr, flush=True)
    except GradwireError as error:
        sys.exit(f"progress: {error}")
    result = benchmark.result(f"python benchmarks/progress.py {shlex.join(_shown(sys.argv[1:]))}".rstrip())
    if options.out:
        benchmark.write(options.out, result)
    shown = (page.short(result["totals"]), tables.time_table(result["cells"]), tables.peer_table(result["cells"]))
    if options.local:
        shown = (*shown, tables.local_table(result["cells"]))
    print("\n\n".join("\n".join(lines) for lines in shown))


def _done(benchmark: Benchmark, options: argparse.Namespace) -> Iterator[str]:
    """Run what was asked for; each finished run in words."""
    if options.lab:
        yield from (f"lab {' '.join(one)}" for one in benchmark.lab.run())
    elif not options.only_write:
        for work, _ in benchmark.run():
            names = ("kind", "task", "network", "level")
            yield " ".join(str(work.settings[name]) for name in names if name in work.settings)


def _shown(arguments: list[str]) -> list[str]:
    """Without the paths of this machine."""
    return ["DIR" if "/" in word and not word.startswith("-") else word for word in arguments]


if __name__ == "__main__":
    main()
