"""The figures of README and documentation that come from virtual time: repeatable, and the same on every machine.

    python benchmarks/figures.py time-to-loss            docs/figures/time-to-loss.svg
    python benchmarks/figures.py decisions --data-dir D  docs/figures/decisions.svg, over a recorded LTE trace

`time-to-loss` runs nothing: it is drawn from docs/results/progress.json, and shows how much sooner than plain DDP each
way of sending gradients reaches the loss that plain DDP has at nine tenths of its steps, as a mean over tasks and
seeds. `decisions`: what the network carried, what gradwire believed, and what it chose; its run is kept in
runs/figures, and `--fresh` forgets it.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from statistics import geometric_mean
from typing import Any, Final

from gradwire.network import Network
from gradwire.simulate.local_training import simulation_of
from gradwire.simulate.training import SimulatedJob
from harness.progress.networks import network_of
from harness.progress.tasks import task_of
from harness.svg import Band, Bars, Trace, bar_figure, timeline_figure

ROOT: Final = Path(__file__).parents[1]
FIGURES: Final = ROOT / "docs" / "figures"
PROGRESS: Final = ROOT / "docs" / "results" / "progress.json"
RUNS: Final = ROOT / "runs" / "figures"
TASK: Final = "mlp"
HOSTS: Final = 4
NETWORKS: Final = {
    "20mbit": "20 Mbit/s",
    "lan100": "100 Mbit/s LAN",
    "lan1g": "1 Gbit/s LAN",
    "wan-us-eu": "US to Europe, 300 Mbit/s",
    "lossy-wifi": "Wi-Fi, 1.4 % loss",
    "lte": "mobile, 30 Mbit/s on average",
    "starlink-like": "satellite",
    "drop": "1 Gbit/s that drops to 20",
    "att-lte": "LTE in a car, recorded",
    "norway-train": "3G in a train, recorded",
}
CONTESTANTS: Final = {
    "torch-fp16": "torch's fp16 hook",
    "torch-powersgd:4": "torch's PowerSGD, rank 4",
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


def run(network: Network, name: str, steps: int) -> RunCurve:
    """Train under auto, or read what was trained."""
    path = RUNS / f"{TASK}-{name}-auto-{steps}.json"
    if path.is_file():
        return RunCurve(**json.loads(path.read_text()))
    job = SimulatedJob(task_of(TASK, steps, None), network, "auto", evaluate_every=steps + 1)
    done = list(islice(simulation_of(job), steps))
    curve = RunCurve(
        [one.seconds for one in done],
        [one.loss for one in done],
        [str(one.level) for one in done],
        [one.bandwidth for one in done],
    )
    RUNS.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(curve)))
    return curve


def on_network(name: str, steps: int, data: Path) -> Network:
    return network_of(name, HOSTS, steps * task_of(TASK, steps, None).compute, data)


def speedup(cells: Sequence[dict[str, Any]], contestant: str) -> float | None:
    """Of a network's cells, against plain DDP: the geometric mean over tasks and seeds; None where one run did not
    reach the loss."""
    ratios = []
    for cell in cells:
        seconds = cell["targets"][-1]["seconds"]
        for plain, other in zip(seconds[BASE], seconds[contestant], strict=True):
            if other is None:
                return None
            ratios.append(plain / other)
    return geometric_mean(ratios)


def time_to_loss(found: dict[str, Any]) -> str:
    rows = []
    for name, title in NETWORKS.items():
        cells = [cell for cell in found["cells"] if cell["network"] == name]
        if cells:
            rows.append(Bars(title, [speedup(cells, contestant) for contestant in CONTESTANTS]))
    tasks = ", ".join(dict.fromkeys(cell["task"] for cell in found["cells"]))
    title = "How much sooner than plain DDP the same loss is reached"
    note = f"{found['setup']['hosts']} hosts, {tasks}, {found['setup']['steps']} steps, {len(found['seeds'])} seed(s), "
    return bar_figure(title, f"{note}in virtual time (docs/results/progress.md)", list(CONTESTANTS.values()), rows)


def decisions(steps: int, data: Path) -> str:
    name = "att-lte"
    network = on_network(name, steps, data)
    curve = run(network, name, steps)
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
    parser.add_argument("--steps", type=int, default=200, help="of decisions")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--fresh", action="store_true", help="forget the run that is kept")
    options = parser.parse_args()
    if options.fresh:
        shutil.rmtree(RUNS, ignore_errors=True)
    if options.figure == "time-to-loss":
        svg = time_to_loss(json.loads(PROGRESS.read_text()))
    elif options.data_dir is None:
        parser.error("decisions: needs --data-dir with the recorded traces")
    else:
        svg = decisions(options.steps, options.data_dir)
    path = FIGURES / f"{options.figure}.svg"
    path.write_text(svg)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
