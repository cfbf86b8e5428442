"""The gradwire backend against gloo: all_reduce in one job, alternating.

    python benchmarks/backend.py loopback [--ranks 2 4 8] [--json FILE]
    python benchmarks/backend.py lab      [--ranks 2 4 8] [--mbit 1000] [--delay-ms 0.1] [--loss 0] [--congestion cubic]
    python benchmarks/backend.py soak     [--minutes 10] [--ranks 3] [--cycles 1000]

A time is the slowest rank's, from a common barrier to its return; the table has medians and gloo's time over ours.
`soak` runs random collectives on random groups, compares each result with gloo's, and prints memory, threads and
sockets after every minute and at the end; then it creates and destroys the group `--cycles` times.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from harness.facts import machine_facts

SIZES = {"4 KB": 4096, "1 MB": 1 << 20, "8 MB": 8 << 20, "45 MB": 45 << 20}
# Few repetitions of slow sizes, many of fast and noisy ones.
TURNS = {"4 KB": 200, "1 MB": 60, "8 MB": 20, "45 MB": 8}

RANK = """
import json, sys, time, torch, torch.distributed as dist
from datetime import timedelta
torch.set_num_threads(1)
work = json.loads(sys.argv[1])
dist.init_process_group("gloo", timeout=timedelta(seconds=280))
groups = {"gloo": dist.group.WORLD, "gradwire": dist.new_group(backend="gradwire", timeout=timedelta(seconds=280))}
for name, (size, turns) in work.items():
    tensor = torch.zeros(size // 4)
    times = {who: [] for who in groups}
    for turn in range(turns + 1):
        for who, group in groups.items():
            dist.barrier()
            start = time.perf_counter()
            dist.all_reduce(tensor, group=group)
            taken = torch.tensor(time.perf_counter() - start, dtype=torch.float64)
            dist.all_reduce(taken, dist.ReduceOp.MAX)
            if turn:
                times[who].append(taken.item())
    if dist.get_rank() == 0:
        print(json.dumps({"size": name, **times}), flush=True)
dist.destroy_process_group()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("where", choices=["loopback", "lab", "soak"])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--sizes", nargs="+", default=["4 KB", "1 MB", "45 MB"], choices=list(SIZES))
    parser.add_argument("--turns", type=int, help="repetitions, instead of 200, 60 and 8")
    parser.add_argument("--mbit", type=float, default=1000)
    parser.add_argument("--delay-ms", type=float, default=0.1, help="round trip")
    parser.add_argument("--loss", type=float, default=0.0)
    parser.add_argument("--congestion", default="cubic", help="congestion control of gloo's TCP and gradwire's")
    parser.add_argument("--wire", default="auto")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--cycles", type=int, default=1000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    if options.where == "soak":
        rows = [{"where": "soak", **soak(options.ranks[0], options.minutes, options.cycles)}]
    else:
        print(
            "| ranks | size | gloo, ms | gradwire, ms | gloo / gradwire (quartiles) |\n|---|---|---|---|---|",
            flush=True,
        )
        for ranks in options.ranks:
            rows += measured(ranks, options)
            if options.json:  # after every job: results are kept if a later job fails
                save(options.json, rows)
    if options.json:
        save(options.json, rows)


def save(path: Path, rows: list[dict[str, Any]]) -> None:
    """Rows replace those of the same case in the file; each records its command and the machine."""
    command = "python benchmarks/backend.py " + " ".join(sys.argv[1:])
    fresh = [{**row, "command": command, "machine": machine_facts()} for row in rows]
    old = json.loads(path.read_text())["rows"] if path.exists() else []
    cases = {case_of(row) for row in fresh}
    kept = [row for row in old if case_of(row) not in cases]
    path.write_text(json.dumps({"rows": kept + fresh}, indent=1))


def case_of(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row.get(key) for key in ("where", "network", "ranks", "size", "cycles"))


def measured(ranks: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    work = {name: (SIZES[name], options.turns or TURNS[name]) for name in options.sizes}
    run = on_loopback if options.where == "loopback" else in_lab
    rows = []
    for line in run(ranks, RANK, json.dumps(work), options).splitlines():
        if line.startswith("{"):
            row = {"where": options.where, "network": network_of(options), "ranks": ranks, **json.loads(line)}
            gloo, ours = (1e3 * statistics.median(row[who]) for who in ("gloo", "gradwire"))
            low, high = spread(row)
            print(
                f"| {ranks} | {row['size']} | {gloo:.2f} | {ours:.2f} | {gloo / ours:.2f} ({low:.2f} to {high:.2f}) |"
            )
            sys.stdout.flush()
            rows.append(row)
    return rows


def network_of(options: argparse.Namespace) -> str:
    if options.where == "loopback":
        return options.wire
    return f"{options.mbit:g} Mbit/s, {options.delay_ms:g} ms, {options.loss:.2%} loss, {options.congestion}"


def spread(row: dict[str, Any]) -> tuple[float, float]:
    """Quartiles of the ratio, turn by turn: each turn has both backends one after the other."""
    ratios = [gloo / ours for gloo, ours in zip(row["gloo"], row["gradwire"], strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return low, high


def on_loopback(ranks: int, program: str, argument: str, options: argparse.Namespace) -> str:
    """One process per rank; returns the output of rank 0."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    base = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    base |= {"GLOO_SOCKET_IFNAME": "lo", "GRADWIRE_WIRE": options.wire, "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", program, argument],
            env={**base, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True,
        )
        for rank in range(ranks)
    ]  # fmt: skip
    outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        sys.exit(f"a rank failed: codes {[process.returncode for process in processes]}")
    return outputs[0]


def in_lab(ranks: int, program: str, argument: str, options: argparse.Namespace) -> str:
    """One emulated host per rank."""
    from gradwire.lab import Lab
    from gradwire.network import LinkSpec, Network
    from gradwire.network.network import SWITCH, as_hosts, host_names, star
    from gradwire.units import Bytes, Rate, Seconds

    machines = as_hosts(host_names(ranks))
    # A round trip passes four links.
    delay, queue = (
        Seconds(options.delay_ms / 4e3),
        Bytes(max(512 << 10, int(options.mbit * 1e6 / 8 * options.delay_ms / 1e3))),
    )
    access = LinkSpec(Rate.from_mbit(options.mbit), delay, queue=queue, loss=options.loss / 2)
    network = Network("benchmark", machines, star(machines, access), (SWITCH,), congestion=options.congestion)
    os.environ.update(GRADWIRE_WIRE=options.wire, OMP_NUM_THREADS="1")
    with Lab(network) as lab:
        result = lab.run([sys.executable, "-W", "ignore", "-c", program, argument], timeout=280)
    if result.code:
        sys.exit(f"a rank failed with code {result.code}\n{result.hosts[0].output[-3000:]}")
    return result.hosts[0].output


SOAK = Path(__file__).parent / "harness" / "soak.py"


def soak(ranks: int, minutes: float, cycles: int) -> dict[str, Any]:
    """Runs harness/soak.py on every rank; what rank 0 reports."""
    argument = json.dumps({"minutes": minutes, "cycles": cycles})
    report = on_loopback(ranks, SOAK.read_text(), argument, argparse.Namespace(wire="auto"))
    print(report)
    row: dict[str, Any] = json.loads(report.splitlines()[-1])
    return row


if __name__ == "__main__":
    main()
