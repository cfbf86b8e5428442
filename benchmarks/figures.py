"""The figures of README and documentation that come from virtual time: repeatable, and the same on every machine.

    python benchmarks/figures.py time-to-loss            docs/figures/time-to-loss.svg
    python benchmarks/figures.py decisions --data-dir D  docs/figures/decisions.svg, over a recorded LTE trace

Every run is kept in runs/figures, so an interrupted one continues; `--fresh` forgets them. `time-to-loss`: how much
sooner than plain DDP each way of sending gradients reaches the loss that plain DDP has at nine tenths of its steps, by
the trend of the training loss. `decisions`: what the network carried, what gradwire believed, and what it chose.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from gradwire.network import Network
from gradwire.simulate.local_training import simulation_of
from gradwire.simulate.training import SimulatedJob
from harness.progress.curves import Curve, noise_of
from harness.progress.networks import network_of
from harness.progress.tasks import task_of
from harness.progress.torch_hooks import TORCH_HOOKS, HookWorkers, hook_of
from harness.svg import Band, Bars, Trace, bar_figure, timeline_figure

ROOT: Final = Path(__file__).parents[1]
FIGURES: Final = ROOT / "docs" / "figures"
RUNS: Final = ROOT / "runs" / "figures"
TASK: Final = "mlp"
HOSTS: Final = 4
NETWORKS: Final = {
    "20mbit": "20 Mbit/s",
    "lan100": "100 Mbit/s LAN",
    "lan1g": "1 Gbit/s LAN",
    "wan-us-eu": "US to Europe, 300 Mbit/s",
    "lte": "mobile, 30 Mbit/s on average",
    "drop": "1 Gbit/s that drops to 20",
}
CONTESTANTS: Final = {
    "torch-fp16": "torch's fp16 hook",
    "torch-powersgd:1": "torch's PowerSGD, rank 1",
    "auto": "gradwire",
}
BASE: Final = "off"


@dataclass(frozen=True, slots=True)
class RunCurve:
    """One run: the end of each step in seconds, its loss, the level in force, the believed rate in bytes a second."""

    seconds: list[float]
    losses: list[float]
    levels: list[str]
    believed: list[float | None]


def run(contestant: str, network: Network, name: str, steps: int) -> RunCurve:
    """Train, or read what was trained."""
    path = RUNS / f"{TASK}-{name}-{contestant.replace(':', '-')}-{steps}.json"
    if path.is_file():
        return RunCurve(**json.loads(path.read_text()))
    print(f"{contestant} on {name}", file=sys.stderr, flush=True)
    task = task_of(TASK, steps, None)
    hook = contestant in TORCH_HOOKS
    job = SimulatedJob(task, network, BASE if hook else contestant, evaluate_every=steps + 1)
    simulation = simulation_of(job)
    if hook:
        simulation.workers = HookWorkers(task, HOSTS, hook_of(contestant), job.seed)
    done = list(islice(simulation, steps))
    curve = RunCurve(
        [one.seconds for one in done],
        [one.loss for one in done],
        [str(one.level) for one in done],
        [one.bandwidth for one in done],
    )
    RUNS.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(curve)))
    return curve


def on_network(name: str, steps: int, data: Path | None) -> Network:
    return network_of(name, HOSTS, steps * task_of(TASK, steps, None).compute, data)


def speedups(name: str, steps: int) -> list[float | None]:
    """Of every contestant on this network, against plain DDP; None where the loss was not reached."""
    network = on_network(name, steps, None)
    plain = run(BASE, network, name, steps)
    noise = noise_of(plain.losses)
    base = Curve.of(plain.seconds, plain.losses, noise)
    target = base.lowest_by(plain.seconds[round(0.9 * steps) - 1])
    reference = base.time_to(target)
    assert reference is not None
    found = []
    for contestant in CONTESTANTS:
        other = run(contestant, network, name, steps)
        reached = Curve.of(other.seconds, other.losses, noise).time_to(target)
        found.append(None if reached is None else reference / reached)
    return found


def time_to_loss(steps: int) -> str:
    rows = [Bars(title, speedups(name, steps)) for name, title in NETWORKS.items()]
    title = "How much sooner than plain DDP the same loss is reached"
    note = f"4 hosts, an MLP with Adam, {steps} steps, one seed, in virtual time (benchmarks/figures.py)"
    return bar_figure(title, note, list(CONTESTANTS.values()), rows)


def decisions(steps: int, data: Path) -> str:
    name = "att-lte"
    network = on_network(name, steps, data)
    curve = run("auto", network, name, steps)
    trace = network.links[0].spec.trace
    assert trace is not None
    end = curve.seconds[-1]
    times = [end * i / 400 for i in range(401)]
    carried = Trace("what the link carries", [(at, 8e-6 * float(trace.rate_at(at))) for at in times], faint=True)
    known = zip(curve.seconds, curve.believed, strict=True)
    believed = Trace("what gradwire believes", [(at, 8e-6 * rate) for at, rate in known if rate is not None])
    bands, begin = [], 0.0
    for at, level, after in zip(curve.seconds, curve.levels, [*curve.levels[1:], ""], strict=True):
        if level != after:
            bands.append(Band(level, begin, at))
            begin = at
    title = "Levels that gradwire chose on a recorded LTE network"
    note = f"access link of one of 4 hosts, recorded while driving; an MLP, {steps} steps, in virtual time"
    return timeline_figure(title, note, [carried, believed], bands)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figure", choices=("time-to-loss", "decisions"))
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--fresh", action="store_true", help="forget the runs that are kept")
    options = parser.parse_args()
    if options.fresh:
        shutil.rmtree(RUNS, ignore_errors=True)
    if options.figure == "decisions" and options.data_dir is None:
        parser.error("decisions: needs --data-dir with the recorded traces")
    svg = (
        time_to_loss(options.steps) if options.figure == "time-to-loss" else decisions(options.steps, options.data_dir)
    )
    path = FIGURES / f"{options.figure}.svg"
    path.write_text(svg)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
