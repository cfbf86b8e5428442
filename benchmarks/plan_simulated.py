"""Planning time, and simulated time of the plans: the figures of docs/planning.md.

python benchmarks/plan_simulated.py time              planning time by size, against the limits (exit 1 if over)
python benchmarks/plan_simulated.py netstorm --seeds 20   the 9-site network over many draws, with the LP bound
    with --out DIR also in DIR/plan-simulated.md
python benchmarks/plan_simulated.py net --csv FILE [--latency FILE]    any CSV matrix, all planners
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import numpy as np

from gradwire.cli.networks import network
from gradwire.plan.job import ReductionJob
from gradwire.plan.matrix import Matrix
from gradwire.plan.model.matrix_io import generated, netstorm9
from gradwire.plan.planners.registry import PLANNERS, make_plan
from gradwire.simulate.compare import compare
from gradwire.simulate.models import gradient_bytes

# Upper limits in seconds, by number of members.
LIMITS = {100: 0.05, 1000: 1.0}


def sparse(size: int, degree: int = 6) -> Matrix:
    """A random graph in which most pairs need relays."""
    random = np.random.default_rng(size)
    there = random.random((size, size)) < degree / size
    order = random.permutation(size)
    there[order, np.roll(order, -1)] = True
    return Matrix.of(np.where(there | there.T, random.uniform(2e6, 2e7, (size, size)), 0.0), 0.03)


def planning_times() -> bool:
    """CPU time (planning is one thread), best of several runs on a shared machine; returns whether the limits hold."""
    within_limits = True
    job = ReductionJob(gradient_bytes("vgg16"))
    kinds = {
        "mesh with uplinks": lambda size: generated(size, 1).matrix,
        "mesh of pipes": lambda size: Matrix.of(generated(size, 1).matrix.rate, generated(size, 1).matrix.rtprop),
        "sparse graph": sparse,
    }
    for size in (9, 24, 63, 100, 300, 1000):
        for kind, make in kinds.items():
            matrix = make(size)
            times = []
            for _ in range(5 if size <= 300 else 3):
                start = time.process_time()
                plan = make_plan(matrix, job)
                times.append(time.process_time() - start)
            over = min(times) > LIMITS.get(size, np.inf)
            within_limits &= not over
            note = " OVER THE LIMIT" if over else ""
            print(
                f"{size:5d} sites, {kind:18s} {min(times) * 1e3:7.1f} ms, {len(plan.trees):4d} trees{note}", flush=True
            )
    return within_limits


def netstorm(seeds: int, chunk: int) -> str:
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "plan"))
    from bound import least_time

    job = ReductionJob(gradient_bytes("alexnet"), chunk=chunk)
    times: dict[str, list[float]] = {name: [] for name in (*PLANNERS, "LP bound")}
    for seed in range(seeds):
        matrix = netstorm9(seed).matrix
        times["LP bound"].append(least_time(matrix, job.nbytes))
        for row in compare(matrix, job, PLANNERS):
            assert row.simulated is not None
            times[row.planner].append(row.simulated)
    lines = ["| planner | mean s | load-aware is faster by, mean (least .. most) |", "|---|---|---|"]
    for name, values in sorted(times.items(), key=lambda entry: -statistics.mean(entry[1])):
        ratios = [value / best for value, best in zip(values, times["loadaware"], strict=True)]
        spread = f"{statistics.mean(ratios):.2f}x ({min(ratios):.2f} .. {max(ratios):.2f})"
        lines.append(f"| {name} | {statistics.mean(values):.1f} | {spread} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("time", "netstorm", "net"))
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--chunk", type=int, default=1 << 20)
    parser.add_argument("--csv")
    parser.add_argument("--latency")
    parser.add_argument("--model", default="vgg16")
    parser.add_argument("--out", type=Path, default=None, help="netstorm: write plan-simulated.md here")
    options = parser.parse_args()
    if options.what == "time":
        return 0 if planning_times() else 1
    if options.what == "netstorm":
        table = netstorm(options.seeds, options.chunk)
        print(table)
        if options.out:
            options.out.mkdir(parents=True, exist_ok=True)
            (options.out / "plan-simulated.md").write_text(table + "\n")
        return 0
    named = network(options.csv, options.latency)
    print(f"{named.name}, {named.matrix.size} members, {options.model}")
    for row in compare(named.matrix, ReductionJob(gradient_bytes(options.model), chunk=options.chunk), PLANNERS):
        simulated = f"{row.simulated:.3f}" if row.simulated is not None else "-"
        print(
            f"| {row.planner} | {simulated} | {row.predicted:.3f} | {row.trees} | {row.planning * 1e3:.0f} ms |",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
