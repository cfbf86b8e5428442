"""Crossover points between summing algorithms: the measurements behind the constants of `gradwire.backend`.

    python benchmarks/crossover.py board [--ranks 4 8] [--json FILE]    shared memory: direct or in shares, slots
    python benchmarks/crossover.py wire  [--ranks 4] [--json FILE]      LTP in the lab: direct or in shares

Algorithms alternate in one job; a time is the slowest rank's, from a common barrier to its return. The table shows
medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from backend import in_lab, on_loopback
from harness.facts import machine_facts

KB = 1024
SUMS = [4 * KB, 16 * KB, 32 * KB, 64 * KB, 128 * KB, 256 * KB, 1024 * KB]
WIRE_SUMS = [48 * KB, 64 * KB, 96 * KB, 128 * KB, 192 * KB, 256 * KB, 512 * KB]
SLOTS = [64 * KB, 128 * KB, 256 * KB, 512 * KB, 1024 * KB]
LARGE = 16 << 20

RANK = """
import json, sys, time, torch, torch.distributed as dist
from datetime import timedelta
from gradwire.backend import reduce, shm_allreduce
torch.set_num_threads(1)
plan = json.loads(sys.argv[1])
limit = timedelta(seconds=200)
dist.init_process_group("gloo", timeout=limit)

def timed(tensor, group):
    dist.barrier()
    start = time.perf_counter()
    dist.all_reduce(tensor, group=group)
    taken = torch.tensor(time.perf_counter() - start, dtype=torch.float64)
    dist.all_reduce(taken, dist.ReduceOp.MAX)
    return taken.item()

def report(**row):
    if dist.get_rank() == 0:
        print(json.dumps(row), flush=True)

group = dist.new_group(backend="gradwire", timeout=limit)
for size in plan["sums"]:
    tensor, times = torch.zeros(size // 4), {"direct": [], "sharded": []}
    for turn in range(plan["turns"] + 2):
        for algorithm in times:
            shm_allreduce.SHARDED = reduce.DIRECT = 0 if algorithm == "sharded" else 1 << 40
            taken = timed(tensor, group)
            if turn > 1:
                times[algorithm].append(taken)
    report(size=size, **times)
shm_allreduce.SHARDED = 256 << 10
groups = {}
for shm_allreduce.SLOT in plan["slots"]:
    groups[shm_allreduce.SLOT] = dist.new_group(backend="gradwire", timeout=limit)
times = {slot: [] for slot in groups}
for turn in range(plan["large_turns"] + 2):
    for slot, group in groups.items():
        taken = timed(torch.zeros(plan["large"] // 4), group)
        if turn > 1:
            times[slot].append(taken)
if groups:
    report(large=plan["large"], slots=times)
dist.destroy_process_group()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("where", choices=["board", "wire"])
    parser.add_argument("--ranks", type=int, nargs="+", default=[4])
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--large-turns", type=int, default=10)
    parser.add_argument("--mbit", type=float, default=1000)
    parser.add_argument("--delay-ms", type=float, default=0.1, help="round trip")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    on_board = options.where == "board"
    plan = {"sums": SUMS if on_board else WIRE_SUMS, "turns": options.turns, "slots": SLOTS if on_board else [],
            "large": LARGE, "large_turns": options.large_turns}  # fmt: skip
    options.wire, options.loss, options.congestion = "auto", 0.0, "cubic"
    run = on_loopback if on_board else in_lab
    rows: list[dict[str, Any]] = []
    for ranks in options.ranks:
        lines = run(ranks, RANK, json.dumps(plan), options).splitlines()
        rows += [{"ranks": ranks, **json.loads(line)} for line in lines if line.startswith("{")]
    show(rows)
    if options.json:
        command = "python benchmarks/crossover.py " + " ".join(sys.argv[1:])
        options.json.write_text(json.dumps({"command": command, "machine": machine_facts(), "rows": rows}, indent=1))


def show(rows: list[dict[str, Any]]) -> None:
    print("| ranks | size, KB | direct, ms | in shares, ms | direct / shares |\n|---|---|---|---|---|")
    for row in (row for row in rows if "size" in row):
        direct, sharded = (1e3 * statistics.median(row[algorithm]) for algorithm in ("direct", "sharded"))
        print(f"| {row['ranks']} | {row['size'] // KB} | {direct:.2f} | {sharded:.2f} | {direct / sharded:.2f} |")
    for row in (row for row in rows if "slots" in row):
        words = [
            f"{int(slot) // KB} KB {1e3 * statistics.median(times):.1f} ms" for slot, times in row["slots"].items()
        ]
        print(f"\n{row['ranks']} ranks, {row['large'] >> 20} MB, by size of a slot: {', '.join(words)}")


if __name__ == "__main__":
    main()
