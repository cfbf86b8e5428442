"""Checks the lab: one bare gloo all-reduce of ResNet-18's gradients over 8 hosts, against the ring bound.

    python benchmarks/gloo_allreduce.py [--rates 100 200 500 1000] [--repeat 3] [--json FILE]

ddp_allreduce.py measures the same with DDP.
The bound: each host sends 2 (n-1)/n of the gradient through its own link, 1448 bytes of it in 1538 on the wire.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from gradwire.lab import Lab
from gradwire.network import LinkSpec, Network
from gradwire.network.network import SWITCH, as_hosts, host_names, star
from gradwire.units import Bytes, Rate, Seconds

ELEMENTS = 11_173_962  # ResNet-18 for 32 x 32 images and ten classes

RANK = """
import sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
gradient = torch.ones(int(sys.argv[1]))
dist.all_reduce(torch.ones(1000))
for _ in range(int(sys.argv[2])):
    dist.barrier()
    start = time.perf_counter()
    dist.all_reduce(gradient)
    if dist.get_rank() == 0:
        print(time.perf_counter() - start)
dist.destroy_process_group()
"""


def network(mbit: float, hosts: int) -> Network:
    machines = as_hosts(host_names(hosts))
    access = LinkSpec(Rate.from_mbit(mbit), Seconds(50e-6), queue=Bytes(512 * 1024))
    return Network(f"{mbit:g} Mbit/s", machines, star(machines, access), (SWITCH,))


def bound(mbit: float, hosts: int) -> float:
    return 2 * (hosts - 1) / hosts * ELEMENTS * 4 * 8 / (mbit * 1e6) * 1538 / 1448


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=float, nargs="+", default=[100, 200, 500, 1000])
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    print("| Mbit/s | ring bound, s | gloo, s (best of runs) | ratio | late > 1 ms |\n|---|---|---|---|---|")
    for mbit in options.rates:
        with Lab(network(mbit, options.hosts)) as lab:
            result = lab.run([sys.executable, "-c", RANK, str(ELEMENTS), str(options.repeat)], timeout=300)
        if result.code != 0:
            sys.exit(f"{mbit:g} Mbit/s: a rank failed with code {result.code}\n{result.hosts[0].output}")
        times = [float(line) for line in result.hosts[0].output.splitlines() if line.replace(".", "", 1).isdigit()]
        best, least = min(times), bound(mbit, options.hosts)
        rows.append({"mbit": mbit, "bound": least, "seconds": times, "verdict": result.stats.verdict})
        late = f"{result.stats.late_share:.1%}"
        print(f"| {mbit:g} | {least:.2f} | {best:.2f} | {best / least:.2f} | {late} |", flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
