"""The gradwire backend against gloo: all_reduce in one job, the two taking turns.

    python benchmarks/backend.py loopback [--ranks 2 4 8] [--json FILE]
    python benchmarks/backend.py lab      [--ranks 2 4 8] [--mbit 1000] [--delay-ms 0.1] [--loss 0] [--congestion cubic]
    python benchmarks/backend.py soak     [--minutes 10] [--ranks 3] [--cycles 1000]

A time is the slowest rank's, from a common barrier to its return; the table has medians and gloo's time over ours.
`soak` runs random collectives on random groups, compares each answer with gloo's, and prints memory, threads and
sockets at the beginning and at the end; then it makes and destroys the group `--cycles` times.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from harness.facts import machine_facts

SIZES = {"4 KB": 4096, "1 MB": 1 << 20, "45 MB": 45 << 20}
# Few repetitions of what takes long, many of what is quick and noisy.
TURNS = {"4 KB": 200, "1 MB": 60, "45 MB": 8}

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
    parser.add_argument("--sizes", nargs="+", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--turns", type=int, help="repetitions, instead of 200, 60 and 8")
    parser.add_argument("--mbit", type=float, default=1000)
    parser.add_argument("--delay-ms", type=float, default=0.1, help="round trip")
    parser.add_argument("--loss", type=float, default=0.0)
    parser.add_argument("--congestion", default="cubic", help="of gloo's TCP, and of ours")
    parser.add_argument("--wire", default="auto")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--cycles", type=int, default=1000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    if options.where == "soak":
        rows = [soak(options.ranks[0], options.minutes, options.cycles)]
    else:
        print("| ranks | size | gloo, ms | gradwire, ms | gloo / gradwire |\n|---|---|---|---|---|", flush=True)
        for ranks in options.ranks:
            rows += measured(ranks, options)
    if options.json:
        command = "python benchmarks/backend.py " + " ".join(sys.argv[1:])
        options.json.write_text(json.dumps({"command": command, "machine": machine_facts(), "rows": rows}, indent=1))


def measured(ranks: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    work = {name: (SIZES[name], options.turns or TURNS[name]) for name in options.sizes}
    run = on_loopback if options.where == "loopback" else in_lab
    rows = []
    for line in run(ranks, RANK, json.dumps(work), options).splitlines():
        if line.startswith("{"):
            row = {"ranks": ranks, **json.loads(line)}
            gloo, ours = (1e3 * statistics.median(row[who]) for who in ("gloo", "gradwire"))
            print(f"| {ranks} | {row['size']} | {gloo:.2f} | {ours:.2f} | {gloo / ours:.2f} |", flush=True)
            rows.append(row)
    return rows


def on_loopback(ranks: int, program: str, argument: str, options: argparse.Namespace) -> str:
    """One process per rank; what rank 0 printed."""
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
    from gradwire.emulate import Lab
    from gradwire.link import LinkSpec, Network
    from gradwire.link.network import SWITCH, as_hosts, host_names, star
    from gradwire.units import Bytes, Rate, Seconds

    machines = as_hosts(host_names(ranks))
    # The delay of a round trip passes four links.
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
    with tempfile.TemporaryDirectory() as folder:
        argument = json.dumps({"minutes": minutes, "cycles": cycles, "folder": folder})
        options = argparse.Namespace(wire="auto")
        report = on_loopback(ranks, SOAK.read_text(), argument, options)
    print(report)
    row: dict[str, Any] = json.loads(report.splitlines()[-1])
    return row


if __name__ == "__main__":
    main()
