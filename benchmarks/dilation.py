"""Checks dilated time: the same work at several factors takes the same undilated seconds.

    python benchmarks/dilation.py steps [--factors 1 2 4 8] [--net slow lan100] [--hosts 2] [--json FILE]
    python benchmarks/dilation.py tcp   [--factors 1 2 4 8] [--json FILE]

steps   a paced training step over gloo and over gradwire's transports; every factor must give the time of factor 1
tcp     plain TCP, whose timers are the kernel's: goodput under loss, and bursts after pauses, with the least
        retransmission timeout stretched (as the lab does) and not stretched

Every row is measured once per round and factor, factors alternate; figures are medians over rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gradwire.lab import Lab, RunResult
from gradwire.network import LinkSpec, Network, load_network, parse_network
from gradwire.network.network import as_hosts, both
from gradwire.units import Bytes, Rate, Seconds

WORKER = Path(__file__).with_name("dilation_worker.py")
CONTESTANTS = (
    ["DDP, gloo", "", "group"],
    ["int8, gloo", "int8", "group"],
    ["int4, TCP", "int4", "tcp"],
    ["int4, LTP", "int4", "ltp"],
)
# Slow enough for the network and the paced compute to take far longer than the processor.
SLOW = """
hosts = 2
[access]
rate = "20mbit"
delay = "2500us"
queue = "128KiB"
"""
WARM_UP = 3  # the first steps rebuild buckets, open connections and start slowly


@dataclass(frozen=True, slots=True)
class Cell:
    """One link for plain TCP: sends for `seconds`, then `bursts` of `burst` bytes, each after `pause`."""

    name: str
    mbit: float
    rtt: float
    loss: float
    congestion: str
    queue: int
    seconds: float = 8.0
    bursts: int = 0
    burst: int = 500_000
    pause: float = 0.15

    def network(self) -> Network:
        there = LinkSpec(Rate.from_mbit(self.mbit), Seconds(self.rtt / 2), loss=self.loss, queue=Bytes(self.queue))
        back = replace(there, loss=0.0)
        return Network(self.name, as_hosts("ab"), both("a", "b", there, back), congestion=self.congestion)


CELLS = (
    Cell("100 Mbit/s, 20 ms, cubic", 100.0, 0.02, 0.0, "cubic", 500_000, seconds=2.0, bursts=20),
    *(
        Cell(f"{name}, {congestion}", mbit, rtt, loss, congestion, queue)
        for name, mbit, rtt, loss, queue in (
            ("300 Mbit/s, 80 ms, loss 0.01 %", 300.0, 0.08, 1e-4, 3_000_000),
            ("100 Mbit/s, 20 ms, loss 0.1 %", 100.0, 0.02, 1e-3, 250_000),
        )
        for congestion in ("cubic", "reno", "bbr")
    ),
)


def reported(result: RunResult) -> dict[str, Any]:
    lines = [line for line in result.hosts[0].output.splitlines() if line.startswith("@")]
    if result.code != 0 or not lines:
        sys.exit(f"a rank failed with code {result.code}\n" + "\n".join(host.output[-2000:] for host in result.hosts))
    answer: dict[str, Any] = json.loads(lines[-1][1:])
    return answer


def run_worker(network: Network, factor: float, kind: str, arguments: dict[str, Any]) -> tuple[dict[str, Any], str]:
    with Lab(network, dilate=factor) as lab:
        env = {"PEER": lab.address(network.hosts[1].name), "TORCH_CPP_LOG_LEVEL": "ERROR"}
        result = lab.run([sys.executable, str(WORKER), kind, json.dumps(arguments)], env=env, timeout=600)
    return reported(result), result.stats.verdict


class Table:
    """Values by row and factor; a line is printed when a row has all of its factors."""

    def __init__(self, factors: Sequence[float], unit: str) -> None:
        self.factors = factors
        self.values: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
        self.late: set[tuple[str, float]] = set()
        print(f"| {unit} | " + " | ".join(f"factor {factor:g}" for factor in factors) + " |")
        print("|---" * (len(factors) + 1) + "|")

    def add(self, row: str, factor: float, values: Sequence[float], verdict: str) -> None:
        self.values[row][factor] += values
        if verdict != "the lab kept up":
            self.late.add((row, factor))

    def show(self, rows: Sequence[str], scale: float = 1.0) -> None:
        for row in rows:
            medians = [statistics.median(self.values[row][factor]) for factor in self.factors]
            cells = [
                f"{value * scale:.4g} ({value / medians[0]:.2f})" + (" late" if (row, factor) in self.late else "")
                for factor, value in zip(self.factors, medians, strict=True)
            ]
            print(f"| {row} | " + " | ".join(cells) + " |", flush=True)

    def as_json(self) -> dict[str, Any]:
        return {
            row: {f"{factor:g}": values for factor, values in by_factor.items()}
            for row, by_factor in self.values.items()
        }


def measure_steps(options: argparse.Namespace) -> dict[str, Any]:
    table = Table(options.factors, "median step, ms (against the first factor)")
    work = {"compute": options.compute_ms / 1e3, "count": options.steps + WARM_UP, "contestants": CONTESTANTS}
    for name in options.net:
        network = (
            load_network(name, options.hosts) if name != "slow" else parse_network(SLOW, name, None, options.hosts)
        )
        for _ in range(options.rounds):
            for factor in options.factors:
                found, verdict = run_worker(network, factor, "steps", work)
                for contestant, times in found.items():
                    table.add(f"{network.name}: {contestant}", factor, times[WARM_UP:], verdict)
        table.show([f"{network.name}: {contestant[0]}" for contestant in CONTESTANTS], 1e3)
    return table.as_json()


def measure_tcp(options: argparse.Namespace) -> dict[str, Any]:
    table = Table(options.factors, "plain TCP (against the first factor)")
    for cell in CELLS:
        goodput, kept, plain = f"{cell.name}: Mbit/s", f"{cell.name}: burst, ms", f"{cell.name}: burst, 200 ms RTO, ms"
        for _ in range(options.rounds):
            for factor in options.factors:
                work = {"seconds": cell.seconds, "burst": cell.burst, "pause": cell.pause, "count": cell.bursts}
                found, verdict = run_worker(cell.network(), factor, "tcp", {**work, "kernel_rto": False})
                table.add(goodput, factor, [found["mbit"]], verdict)
                if cell.bursts:
                    table.add(kept, factor, found["bursts"], verdict)
                    found, verdict = run_worker(cell.network(), factor, "tcp", {**work, "kernel_rto": True})
                    table.add(plain, factor, found["bursts"], verdict)
        table.show([goodput])
        if cell.bursts:
            table.show([kept, plain], 1e3)
    return table.as_json()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("steps", "tcp"))
    parser.add_argument("--factors", type=float, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--net", nargs="+", default=["slow"])
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--compute-ms", type=float, default=150.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    found = {"steps": measure_steps, "tcp": measure_tcp}[options.what](options)
    print(f"load of the machine: {load:.1f} before, {os.getloadavg()[0]:.1f} after, {os.cpu_count()} cores")
    if options.json:
        options.json.write_text(json.dumps({"load": [load, os.getloadavg()[0]], "rows": found}, indent=2))


if __name__ == "__main__":
    main()
