"""The start on a slow network: seconds from building DDP until every rank could make its first step, in the lab.

    python benchmarks/start.py [--hosts 4] [--up 2] [--mb 3] [--repeat 1] [--json FILE]

Hosts on home connections: --up Mbit/s up, ten times that down, 20 ms between two of them. The model has --mb megabytes.
Plain DDP, then gradwire where all ranks built the same weights and where they did not; by `sync_weights` in the script,
and by `gradwire.run` around it, which attaches as well.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

from gradwire.lab import Lab
from gradwire.network import LinkSpec, Network
from gradwire.network.network import SWITCH, as_hosts, host_names, star
from gradwire.units import Rate, Seconds
from harness.facts import machine_facts

WORKER = str(Path(__file__).with_name("start_worker.py"))
RUN = ("-m", "gradwire.run")
# Name, what comes before the script, how it builds its model.
CASES: tuple[tuple[str, tuple[str, ...], str, str], ...] = (
    ("plain DDP", (), "ddp", "equal"),
    ("sync_weights, equal weights", (), "sync", "equal"),
    ("sync_weights, different weights", (), "sync", "different"),
    ("gradwire.run, equal weights", RUN, "ddp", "equal"),
    ("gradwire.run, different weights", RUN, "ddp", "different"),
)
DEADLINE = 300.0


def homes(count: int, up_mbit: float) -> Network:
    up, down = (LinkSpec(Rate.from_mbit(rate), Seconds(0.005)) for rate in (up_mbit, 10 * up_mbit))
    hosts = as_hosts(host_names(count))
    return Network("homes", hosts, star(hosts, lambda _: (up, down)), (SWITCH,))


def measure(network: Network, before: tuple[str, ...], build: str, weights: str, mb: float) -> dict[str, Any]:
    with Lab(network) as lab:
        command = [sys.executable, *before, WORKER, build, weights, str(mb)]
        result = lab.run(command, env={"GRADWIRE_LEVEL": "off", "OMP_NUM_THREADS": "1"}, timeout=DEADLINE)
    output = "\n".join(line for host in result.hosts for line in host.output.splitlines())
    lines = [json.loads(line.removeprefix("START ")) for line in output.splitlines() if line.startswith("START ")]
    if result.code or len(lines) != len(network.hosts):
        raise SystemExit(output)
    assert len({line["digest"] for line in lines}) == 1, "the ranks have different weights"
    return {"seconds": max(line["seconds"] for line in lines), "lab": result.stats.verdict}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--up", type=float, default=2.0)
    parser.add_argument("--mb", type=float, default=3.0)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    network, rows = homes(options.hosts, options.up), []
    print("| start | seconds | lab |\n|---|---|---|", flush=True)
    for name, before, build, weights in CASES:
        runs = [measure(network, before, build, weights, options.mb) for _ in range(options.repeat)]
        seconds, verdicts = [one["seconds"] for one in runs], {one["lab"] for one in runs}
        print(f"| {name} | {median(seconds):.2f} | {', '.join(sorted(verdicts))} |", flush=True)
        rows.append({"start": name, "seconds": seconds, "lab": sorted(verdicts)})
    if options.json:
        setting = {"hosts": options.hosts, "up_mbit": options.up, "model_mb": options.mb}
        options.json.write_text(json.dumps({"setting": setting, "rows": rows, "machine": machine_facts()}, indent=1))


if __name__ == "__main__":
    main()
