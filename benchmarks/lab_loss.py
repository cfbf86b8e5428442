"""TCP under loss: goodput of CUBIC and BBR at 100 Mbit/s and 20 ms round trip, against Mathis' formula.

    python benchmarks/lab_loss.py [--seconds 10] [--json FILE]

Mathis et al. 1997: goodput <= MSS / RTT x sqrt(3/2) / sqrt(loss), for a TCP that halves its window on each loss.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

from gradwire.lab import Lab
from gradwire.lab.measure import tcp_mbit
from gradwire.network import LinkSpec, Network
from gradwire.network.network import as_hosts, both
from gradwire.units import Rate, Seconds

LOSSES = (0.0, 0.001, 0.01, 0.02, 0.05)
RTT = 0.020


def goodput(congestion: str, loss: float, seconds: float) -> tuple[float, str]:
    there = LinkSpec(Rate.from_mbit(100), Seconds(RTT / 2), loss=loss)
    back = LinkSpec(Rate.from_mbit(100), Seconds(RTT / 2))
    network = Network("lossy", as_hosts("ab"), both("a", "b", there, back), congestion=congestion)
    with Lab(network) as lab:
        before = lab.stats()
        value = tcp_mbit(lab, "a", "b", "-O", "1", seconds=seconds)
        return value, lab.stats().since(before).verdict


def mathis(loss: float) -> float:
    return math.inf if loss == 0 else 1448 * 8 / RTT * math.sqrt(1.5) / math.sqrt(loss) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    print("| loss | CUBIC, Mbit/s | BBR, Mbit/s | Mathis | lab kept up |\n|---|---|---|---|---|")
    for loss in LOSSES:
        (cubic, first), (bbr, second) = (goodput(name, loss, options.seconds) for name in ("cubic", "bbr"))
        bound = "-" if loss == 0 else f"{mathis(loss):.1f}"
        kept = ", ".join("yes" if verdict == "the lab kept up" else "no" for verdict in (first, second))
        print(f"| {loss:.1%} | {cubic:.1f} | {bbr:.1f} | {bound} | {kept} |", flush=True)
        rows.append({"loss": loss, "cubic": cubic, "bbr": bbr, "verdicts": [first, second]})
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
