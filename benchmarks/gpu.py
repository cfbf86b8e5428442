"""The host path of a GPU's gradients: what each stage takes, predicted from rates, or measured where there is a GPU.

    python benchmarks/gpu.py              print the predicted stages
    python benchmarks/gpu.py --write      put them into docs/gpu.md
    python benchmarks/gpu.py --measure    on a host with a GPU: this host's copies and kernels instead of assumed rates

Stages of different buckets overlap, so a step waits for the slowest of them beside backward; the table names it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from gradwire.compress import kernels
from gradwire.exchange.select import footprint
from gradwire.level import Level
from gradwire.types import Bucket

PAGE: Final = Path(__file__).parents[1] / "docs" / "gpu.md"
BEGIN: Final = "<!-- stages: begin (python benchmarks/gpu.py --write) -->"
END: Final = "<!-- stages: end -->"

PARAMETERS: Final = 100_000_000
RANKS: Final = 8
BUCKET: Final = 6_250_000  # float32 elements of DDP's 25 MB
LEVELS: Final = ("off", "int8", "int4", "topk:0.01+int8")
NETWORKS: Final = (1, 10, 25)  # Gbit/s


@dataclass(frozen=True, slots=True)
class HostRates:
    """What the stages depend on. `bus` is one direction, `memory` a copy between two places of host memory, both in
    bytes per second; `kernel` is seconds per element of one encoding or decoding by one thread."""

    name: str
    bus: float
    memory: float
    kernel: float


# Buses: about 0.75 of what PCIe 4 and 5 promise for 16 lanes. Memory and kernel: one core at 2.3 GHz with AVX-512,
# where 11 M elements take 6.5 ms for feedback and int8, and 45 MB are copied in about 4.5 ms.
ASSUMED: Final = (HostRates("A100, PCIe 4", 24e9, 10e9, 0.6e-9), HostRates("H100, PCIe 5", 48e9, 10e9, 0.6e-9))


def stages(rates: HostRates, level: str, gbit: float) -> dict[str, float]:
    """Seconds of each stage for one step's gradient in float32. A sharded exchange encodes the gradient once, decodes
    its owners' frames (together one gradient), encodes the mean of a shard and decodes all means: three passes. Of a
    sparse level the frames are small, and only the first is one."""
    nbytes, parsed = 4 * PARAMETERS, Level.parse(level)
    bucket = Bucket(0, 0, BUCKET, 4, (), is_last=True)
    wire = footprint(parsed, bucket, RANKS).wire_bytes * PARAMETERS / BUCKET
    found = {"network": 8 * wire / (gbit * 1e9)}
    if not parsed.off:
        found |= {
            "bus": nbytes / rates.bus,  # each direction; both at once
            "host copies": nbytes / rates.memory,  # one thread for each direction
            "kernels": (1 if parsed.sparse else 3) * PARAMETERS * rates.kernel,
        }
    return found


def table(hosts: tuple[HostRates, ...] = ASSUMED) -> str:
    """`off` is NCCL: only its network counts."""
    names = " / ".join(host.name for host in hosts)
    lines = [
        f"| level | network, ms | bus, ms ({names}) | host copies, ms | kernels, ms | slowest |",
        "|---|---|---|---|---|---|",
    ]
    for level in LEVELS:
        for gbit in NETWORKS:
            each = [stages(host, level, gbit) for host in hosts]
            first = each[0]
            slowest = max(first, key=lambda name: first[name])
            bus = " / ".join(_ms(one.get("bus")) for one in each)
            cells = (_ms(first.get(name)) for name in ("host copies", "kernels"))
            lines.append(
                f"| {level}, {gbit} Gbit/s | {_ms(first['network'])} | {bus} | {' | '.join(cells)} | {slowest} |"
            )
    return "\n".join(lines)


def measured() -> HostRates:
    """This host's rates, with its GPU's bus."""
    from gradwire.doctor.gpu import examine_gpu

    report = examine_gpu()
    source, target = torch.randn(BUCKET), torch.zeros(BUCKET)
    residual, scales = torch.zeros(BUCKET), torch.zeros(-(-BUCKET // kernels.INT8_BLOCK))
    quantised = torch.zeros(BUCKET, dtype=torch.int8)
    copy = _best(lambda: target.copy_(source))
    encode = _best(lambda: kernels.encode_int8(source, residual, quantised, scales))
    bus = min(report.to_host, report.to_device)
    return HostRates(f"{report.gpu}, measured", bus, 4 * BUCKET / copy, encode / BUCKET)


def _best(work: Callable[[], object], rounds: int = 9) -> float:
    found = []
    for _ in range(rounds):
        began = time.monotonic()
        work()
        found.append(time.monotonic() - began)
    return min(found)


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:.0f}"


def page(text: str, found: str) -> str:
    """The page with the table between its marks."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{found}\n{END}{rest.partition(END)[2]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--measure", action="store_true")
    options = parser.parse_args()
    if options.measure:
        rates = measured()
        print(rates)
        print(table((rates,)))
        return
    if options.write:
        PAGE.write_text(page(PAGE.read_text(), table()))
    print(table())


if __name__ == "__main__":
    main()
