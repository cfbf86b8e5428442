"""Transports per pair of ranks, in virtual time: what a job would gain if each pair had the better one of TCP and LTP.

    python benchmarks/pair_transports.py [--scenarios two-offices,campus-wifi] [--steps 120]

The networks of scenarios.py, flat exchanges at fixed levels. Every step is timed three times: all pairs over TCP, all
over LTP, and every pair over the one that took it less time on average in the other two. The gain is against the better
one of the first two. A pair's share of the links does not depend on what carries the others, and an exchange waits for
its last pair. So the last column bounds what any choice could gain, also one that knows before each transfer which wire
will be quicker: the sum of the longest transfer of each exchange, if every pair had its quicker wire in it, against the
same sum over one wire.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter, defaultdict
from typing import Any, Final

import torch

from gradwire.simulate.timeline import Timeline
from gradwire.simulate.transfer import Flow, NetworkTimes
from gradwire.types import TransportKind
from scenarios import SCENARIOS, Run, task_of, trained

LEVELS: Final = ("int8", "int4", "lowrank:32+int4")
WIRES: Final[tuple[TransportKind, ...]] = ("tcp", "ltp")
# A flow by its path: pairs on the same path are alike.
Path = tuple[int, ...]


class PairTimes(NetworkTimes):
    """Every path has a wire of its own; `seconds` is what each transfer on it took."""

    def __init__(self, network: Any, wires: dict[Path, TransportKind], usual: TransportKind) -> None:
        super().__init__(network, usual)
        self._wires, self._usual = wires, usual
        self.seconds: dict[Path, list[float]] = defaultdict(list)

    def _send(self, flow: Flow, start: float, nbytes: int, crossing: Counter[int]) -> float:
        self._wire = self._wires.get(flow.path, self._usual)
        left = super()._send(flow, start, nbytes, crossing)
        self.seconds[flow.path].append(left - start)
        return left


def timed(run: Run, level: str, wires: dict[Path, TransportKind], usual: TransportKind) -> tuple[float, PairTimes]:
    """Seconds of all steps."""
    times = PairTimes(run.network, wires, usual)
    done, end = trained(run.task, run.world, level, run.steps), 0.0
    timeline = Timeline(times, task_of(run.task).compute, random.Random(1))
    for used, traffic in zip(done.levels, done.traffic, strict=True):
        end = timeline.step(traffic, used, 1).end
    return end, times


def bound(*wires: PairTimes) -> float:
    """What the longest transfers of all exchanges take over the better wire, against the quicker wire for every pair in
    every exchange."""
    longest = [[max(each) for each in zip(*one.seconds.values(), strict=True)] for one in wires]
    quicker = [
        [min(each) for each in zip(*(one.seconds[path] for one in wires), strict=True)] for path in wires[0].seconds
    ]
    return min(map(sum, longest)) / sum(max(each) for each in zip(*quicker, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--scenarios", default=",".join(SCENARIOS))
    parser.add_argument("--steps", type=int, default=120)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| scenario | level | TCP s | LTP s | per pair s | paths over LTP | gain | at most |")
    print("|" + "---|" * 8)
    for name in options.scenarios.split(","):
        run = Run(name, "mlp", options.steps)
        for level in LEVELS:
            (tcp, over_tcp), (ltp, over_ltp) = (timed(run, level, {}, usual) for usual in WIRES)
            best: dict[Path, TransportKind] = {
                path: "ltp" if sum(over_ltp.seconds[path]) < sum(over_tcp.seconds[path]) else "tcp"
                for path in over_tcp.seconds
            }
            mixed, _ = timed(run, level, best, "tcp")
            paths = f"{sum(one == 'ltp' for one in best.values())} of {len(best)}"
            gain, most = min(tcp, ltp) / mixed, bound(over_tcp, over_ltp)
            cells = (name, level, f"{tcp:.1f}", f"{ltp:.1f}", f"{mixed:.1f}", paths, f"{gain:.3f}x", f"{most:.3f}x")
            print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
