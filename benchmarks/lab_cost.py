"""Cost of the link emulator: cores used at 100, 500 and 1000 Mbit/s, and the highest total rate it can emulate.

    python benchmarks/lab_cost.py [--seconds 4] [--json FILE]

One TCP flow between two hosts at each rate, then increasing numbers of pairs at 1 Gbit/s each until a flow falls
more than 3 % below its rate or the lab reports that it could not keep up.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from gradwire.lab import Lab
from gradwire.lab.measure import wanted_mbit
from gradwire.lab.process import ProcessWatcher
from gradwire.network import LinkSpec, Network
from gradwire.network.network import as_hosts, both
from gradwire.units import Rate, Seconds


@dataclass(frozen=True, slots=True)
class Row:
    pairs: int
    mbit: float
    wanted_total: float
    got_total: float
    cores: float
    late_share: float
    verdict: str


def pairs_network(pairs: int, mbit: float) -> Network:
    # A queue of 100 ms: CUBIC does not drop within these seconds, so the link sets the rate, not TCP.
    rate = Rate.from_mbit(mbit)
    spec = LinkSpec(rate, Seconds(0.001), queue=rate * Seconds(0.1))
    names = [f"{side}{i}" for i in range(pairs) for side in "ab"]
    links = [link for i in range(pairs) for link in both(f"a{i}", f"b{i}", spec)]
    hub = [link for name in names for link in both(name, "hub", LinkSpec(delay=Seconds(1)))]
    return Network("pairs", as_hosts(names), (*links, *hub), ("hub",))


def measure(pairs: int, mbit: float, seconds: float) -> Row:
    network = pairs_network(pairs, mbit)
    with Lab(network) as lab:
        servers = ProcessWatcher([lab.spawn(f"b{i}", ["iperf3", "-s", "-1"]) for i in range(pairs)])
        time.sleep(0.5)
        commands = [
            ["iperf3", "-c", lab.address(f"b{i}"), "-J", "-t", f"{seconds + 2:g}", "-O", "1"] for i in range(pairs)
        ]
        clients = ProcessWatcher([lab.spawn(f"a{i}", command) for i, command in enumerate(commands)])
        clients_until(clients, time.monotonic() + 1.5)
        before, start = lab.stats(), time.monotonic()
        clients_until(clients, start + seconds)
        used, elapsed = lab.stats().since(before), time.monotonic() - start
        clients_until(clients, time.monotonic() + 10)
        totals = [
            json.loads(entry.result().output)["end"]["sum_received"]["bits_per_second"] for entry in clients.processes
        ]
        for watch in (clients, servers):
            watch.end_all(grace=0.2)
            watch.close()
    wanted = pairs * wanted_mbit([network.links[0].spec], network.overhead)
    got = sum(totals) / 1e6
    return Row(pairs, mbit, wanted, got, used.cpu_seconds / elapsed, used.late_share, used.verdict)


def clients_until(clients: ProcessWatcher, deadline: float) -> None:
    while clients.running and time.monotonic() < deadline:
        clients.step(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--most", type=int, default=8, help="largest number of pairs")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    print(
        f"| pairs x Mbit/s | wanted, Mbit/s | got | emulator, cores | late > 1 ms | verdict |  ({os.cpu_count()} cores)"
    )
    print("|---|---|---|---|---|---|")
    for pairs, mbit in [(1, 100), (8, 100), (1, 500), (1, 1000), *((n, 1000) for n in range(2, options.most + 1))]:
        row = measure(pairs, mbit, options.seconds)
        rows.append(row)
        kept = row.got_total >= 0.97 * row.wanted_total and row.verdict == "the lab kept up"
        words = "kept up" if kept else "did not keep up"
        print(
            f"| {pairs} x {mbit:g} | {row.wanted_total:.0f} | {row.got_total:.0f} | {row.cores:.2f} "
            f"| {row.late_share:.1%} | {words} |",
            flush=True,
        )
        if mbit == 1000 and row.got_total < 0.8 * row.wanted_total:
            break
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=2))


if __name__ == "__main__":
    main()
