"""All parts together on one hard network: nine sites, unequal and changing links, loss; by time to an accuracy.

    python benchmarks/whole.py --data DIR [--contestants NAME,...] [--limit 45] [--out DIR] [--quick]

NetStorm's nine sites on thirteen cables with 1 % loss on each, new random rates every 20 s. A two-layer network on
Fashion-MNIST, with real gradients and paced compute. gradwire with all its parts (auto, load-aware trees,
re-planning, LTP, side routes) against every peer, and with one part left out at a time. The clock counts training on
rank 0, not evaluation; a contestant that has not reached the target at the limit shows its last accuracy. whole.json
collects the results by contestant, so the benchmark can run in parts; whole.md and whole.png are generated from it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

from gradwire.lab import Lab
from gradwire.network import Network, preset
from gradwire.units import Seconds
from harness.contestants import OPTIONAL
from harness.facts import machine_facts
from plan_lab import described, slowed

WORKER = Path(__file__).with_name("whole_worker.py")
MARK = "WHOLE "
LOSS, SLOWED, REDRAWN = 0.01, 2.0, 20.0
WIDTH, BATCH, RATE, COMPUTE = 512, 16, 0.03, 0.05
# Seconds until all nine have started: importing torch on two cores takes long.
START = 120.0


@dataclass(frozen=True, slots=True)
class Contestant:
    """`hook` names a contestant of the harness, or `config` holds gradwire's settings; `congestion` is TCP's."""

    name: str
    about: str
    hook: str = ""
    config: dict[str, Any] | None = None
    congestion: str = "bbr"


def ours(level: str = "auto", plan: str = "loadaware", kind: str = "ltp", **planning: Any) -> dict[str, Any]:
    settings = {"net": "{net}", "interval": 4.0, **planning}
    return {"level": level, "plan": plan, "transport": {"kind": kind}, "planning": settings}


WHOLE = "gradwire"
ENTRIES = (
    Contestant(WHOLE, "auto, load-aware trees, re-planned, LTP, side routes", config=ours()),
    Contestant("ddp, cubic", "plain DDP over gloo, TCP CUBIC", "ddp", congestion="cubic"),
    Contestant("ddp, bbr", "plain DDP over gloo, TCP BBR", "ddp"),
    Contestant("fp16 hook, bbr", "torch's fp16_compress_hook", "fp16-hook"),
    Contestant("powersgd-2, bbr", "torch's PowerSGD, rank 2, one bucket", "powersgd-r2"),
    Contestant("powersgd-4, bbr", "torch's PowerSGD, rank 4, one bucket", "powersgd-r4"),
    Contestant("topk-0.01, bbr", "fixed top 1 %, error feedback, gloo", config={"level": "topk:0.01+int8"}),
    Contestant("topk-0.1, bbr", "fixed top 10 %, error feedback, gloo", config={"level": "topk:0.1+int8"}),
    Contestant("torchft", "torchft's managed all-reduce", "torchft"),
    Contestant("hivemind", "hivemind's averager, fp16", "hivemind-fp16"),
    Contestant("without compression", "gradwire, every bit sent", config=ours("off")),
    Contestant("without auto", "gradwire at a fixed int8", config=ours("int8")),
    Contestant("without trees", "gradwire, exchanges between all pairs", config=ours(plan="")),
    Contestant("without load-awareness", "gradwire, the published trees (fapt)", config=ours(plan="fapt")),
    Contestant("without re-planning", "gradwire, the first plan kept", config=ours(aware=False, probe=False)),
    Contestant("without LTP", "gradwire, trees over TCP BBR", config=ours(kind="tcp")),
    Contestant("without side routes", "gradwire", config=ours(side=False)),
)


def network() -> Network:
    dynamic = preset("netstorm9-dynamic")
    share = REDRAWN / 180.0
    sooner = tuple(replace(change, at=Seconds(float(change.at) * share)) for change in dynamic.changes)
    links = tuple(replace(link, spec=replace(link.spec, loss=LOSS)) for link in dynamic.links)
    return slowed(replace(dynamic, links=links, changes=sooner), SLOWED)


class DoneError(Exception):
    """The contestant reached the target, or its time is up."""


class CurveCollector:
    """Collects the reports of rank 0 about one contestant, and the hashes of all ranks."""

    def __init__(self, lab: Lab, target: float, limit: float) -> None:
        self._lab, self._target, self._limit = lab, target, limit
        self.points: list[tuple[float, int, float, float]] = []
        self.hashes: dict[int, set[int]] = {}
        self.chosen: list[dict[str, Any]] = []
        self.reached: float | None = None
        self.output: list[str] = []
        self._started = False

    def __call__(self, host: str, line: str) -> None:
        if not line.startswith(MARK):
            self.output.append(f"{host}: {line}")
            return
        message = json.loads(line.removeprefix(MARK))
        if message["kind"] == "hash":
            self.hashes.setdefault(message["step"], set()).add(message["hash"])
        elif message["kind"] == "started" and not self._started:
            self._started = True
            self._lab.emulator.begin()  # for every contestant the links start to change when training starts
        elif message["kind"] == "evaluated":
            self.points.append((message["seconds"], message["step"], message["loss"], message["accuracy"]))
            chosen = {name: message[name] for name in ("level", "plan", "reason")}
            if chosen["level"] and (not self.chosen or chosen.items() - self.chosen[-1].items()):
                self.chosen.append({"seconds": message["seconds"], **chosen})
            if message["accuracy"] >= self._target:
                self.reached = message["seconds"]
            if self.reached is not None or message["seconds"] >= self._limit:
                raise DoneError


def run(entry: Contestant, options: argparse.Namespace) -> dict[str, Any]:
    """One contestant in its own lab."""
    net = replace(network(), congestion=entry.congestion)
    with tempfile.TemporaryDirectory() as folder, Lab(net) as lab:
        sites = described(net, Path(folder))
        config = entry.config and json.loads(json.dumps(entry.config).replace("{net}", str(sites)))
        spec = {
            "hook": entry.hook, "config": config, "data": str(options.data), "width": WIDTH, "batch": BATCH,
            "rate": RATE, "compute": COMPUTE,
        }  # fmt: skip
        path = Path(folder) / "spec.json"
        path.write_text(json.dumps(spec))
        curve = CurveCollector(lab, options.target, options.limit)
        before = lab.stats()
        path_list = os.pathsep.join(filter(None, (str(WORKER.parent), os.environ.get("PYTHONPATH"))))
        env = {"PYTHONPATH": path_list, "TORCH_CPP_LOG_LEVEL": "ERROR"}
        with contextlib.suppress(DoneError):
            lab.run([sys.executable, str(WORKER), str(path)], env=env, timeout=START + options.limit, on_line=curve)
        stats = lab.stats().since(before)
    same = all(len(values) == 1 for values in curve.hashes.values())
    if not curve.points:
        print("\n".join(curve.output[-30:]), file=sys.stderr)
    return {
        "reached": curve.reached, "points": curve.points, "same": same and bool(curve.hashes),
        "error": "" if curve.points else _first_error(curve.output), "lab": stats.verdict, "machine": machine_facts(),
        "chosen": curve.chosen, "limit": options.limit, "target": options.target,
    }  # fmt: skip


def _first_error(output: list[str]) -> str:
    errors = [line for line in output if "Error" in line]
    return (errors or output[-1:] or ["no evaluation within the time limit"])[0][:200]


def missing(entry: Contestant) -> bool:
    return entry.hook in OPTIONAL and find_spec(OPTIONAL[entry.hook]) is None


# ---- results ---------------------------------------------------------------------------------------------------------
def cells(entry: Contestant, result: dict[str, Any], best: float | None) -> list[str]:
    name = f"**{entry.name}**" if entry.name == WHOLE else entry.name
    if result["error"]:
        return [name, entry.about, f"failed: {result['error']}", "", "", "", ""]
    last = result["points"][-1]
    step_ms = f"{last[0] / last[1] * 1e3:.0f}"
    seconds = result["reached"] or last[0]
    sign = "" if result["reached"] else "> "
    ratio = f"{sign}{seconds / best:.2f}" if best else "-"
    same = "identical" if result["same"] else "DIFFER"
    return [name, entry.about, f"{sign}{seconds:.1f}", ratio, step_ms, f"{last[3]:.3f}", same]


def page(results: dict[str, Any]) -> str:
    whole = results.get(WHOLE, {})
    best = whole.get("reached")
    known = [(entry, results[entry.name]) for entry in ENTRIES if entry.name in results]
    absent = [entry.name for entry in ENTRIES if entry.name not in results]
    any_one = next(iter(results.values()))
    machine = any_one["machine"]
    head = ("contestant", "what", "seconds", "against gradwire", "ms a step", "accuracy at its end", "replicas")
    lines = [
        "# All parts together: nine sites, changing links, 1 % loss",
        "",
        "    gradwire bench whole        # python benchmarks/whole.py --data DIR --out DIR",
        "",
        f"Seconds of training until {any_one['target']:.0%} of {4000} test images are classified correctly. Nine sites "
        f"on NetStorm's thirteen cables, each direction {20 / SLOWED:g} to {155 / SLOWED:g} Mbit/s and 5 ms, new "
        f"random rates every {REDRAWN:g} s, {LOSS:.0%} loss on every cable. Fashion-MNIST, 784-{WIDTH}-10 "
        f"({(785 * WIDTH + (WIDTH + 1) * 10) * 4 / 1e6:.1f} MB of gradients), batch {BATCH} a site, "
        f"{COMPUTE * 1e3:g} ms of paced compute a step and what two cores take for nine ranks. "
        "The target was 80% at first and was lowered, with the limit, after gradwire's first runs. "
        "One seed, one run each; the JSON has the load of the machine before it. `> x`: not reached at the limit. "
        "Contestants with trees start with the links and their first rates. "
        f"gradwire {machine['revision']}, torch {machine['torch']}, {machine['cores']} cores.",
        "",
        f"| {' | '.join(head)} |",
        "|" + "---|" * len(head),
        *(f"| {' | '.join(cells(entry, result, best))} |" for entry, result in known),
        "",
        *([f"Not run: {'; '.join(absent)}.", ""] if absent else []),
        *late(results),
        "![Accuracy over time](whole.png)",
    ]
    return "\n".join(lines) + "\n"


def late(results: dict[str, Any]) -> list[str]:
    """Names the figures for which the lab was too slow."""
    bad = [f"{name} ({result['lab']})" for name, result in results.items() if "kept up" not in result["lab"]]
    return [f"The lab did not keep up in: {'; '.join(bad)}.", ""] if bad else []


def plot(path: Path, results: dict[str, Any]) -> None:
    figure, axes = pyplot.subplots(1, 2, figsize=(13, 4.8), sharey=True, constrained_layout=True)
    for entry in ENTRIES:
        result = results.get(entry.name)
        if not result or not result["points"]:
            continue
        chosen = axes if entry.name == WHOLE else (axes[1 if entry.name.startswith("without") else 0],)
        for axis in chosen:
            seconds, accuracies = [point[0] for point in result["points"]], [point[3] for point in result["points"]]
            axis.plot(seconds, accuracies, label=entry.name, linewidth=3 if entry.name == WHOLE else 1.4)
    for axis, title in zip(axes, ("against peers", "one part left out"), strict=True):
        axis.set_title(title)
        axis.set_xlabel("seconds of training")
        axis.legend(fontsize=8)
    axes[0].set_ylabel("accuracy")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def add(folder: Path, name: str, result: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "whole.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    results[name] = result
    path.write_text(json.dumps(results) + "\n")
    (folder / "whole.md").write_text(page(results))
    plot(folder / "whole.png", results)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("/usr/share/datasets/fashion-mnist"), help="its IDX files")
    parser.add_argument("--contestants", default="", help="names separated by ; (default: all)")
    parser.add_argument("--limit", type=float, default=45.0, help="seconds of training for each")
    parser.add_argument("--target", type=float, default=0.8)
    parser.add_argument("--quick", action="store_true", help="gradwire and plain DDP with CUBIC and BBR, 20 s each")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    wanted = [name.strip() for name in options.contestants.split(";") if name.strip()]
    if options.quick:
        wanted, options.limit = [WHOLE, "ddp, cubic", "ddp, bbr"], 20.0
    unknown = set(wanted) - {entry.name for entry in ENTRIES}
    if unknown:
        sys.exit(
            f"whole: unknown contestant {', '.join(unknown)}; known are {'; '.join(entry.name for entry in ENTRIES)}"
        )
    failed = 0
    for entry in ENTRIES:
        if (wanted and entry.name not in wanted) or missing(entry):
            continue
        result = run(entry, options)
        failed += bool(result["error"])
        row = cells(entry, result, None)
        print(" | ".join(row), "|", result["lab"], flush=True)
        if options.out:
            add(options.out, entry.name, result)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
