"""Speed of the compression kernels, against the necessary memory traffic and against torch.

    python benchmarks/kernels.py [--large] [--rounds N] [--size N ...]

Ratios come from pairs that alternate, so that a busy machine slows both alike; rounds in which another process took the
core are repeated. Reported are the median and quartiles of the ratios, and the ratio of the best times. The floor is
`r += g` by a plain vector loop: the least that error feedback must do. Prints tables and one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from gradwire import _native
from gradwire.compress import kernels

SIZES = [1_000_000, 11_000_000]
LARGE = 138_000_000
LONG = 11_000_000  # below this rounds are cheap, so there are more of them
SLOW_ROUNDS = 3  # torch's top-k takes seconds at the larger sizes


@dataclass(frozen=True, slots=True)
class Contestant:
    """Something to time, from a fresh residual."""

    name: str
    run: Callable[[], object]
    slow: bool = False


class Arena:
    """Buffers for one size, allocated once and touched, and the contestants over them."""

    def __init__(self, n: int) -> None:
        generator = torch.Generator().manual_seed(1)
        self.n = n
        self.g = torch.randn(n, generator=generator)
        self.r = torch.zeros(n)
        self.start = torch.randn(n, generator=generator)
        self.out = torch.zeros(n)
        self.half = torch.zeros(n, dtype=torch.float16)
        self.brain = torch.zeros(n, dtype=torch.bfloat16)
        self.q8, self.s8 = torch.zeros(n, dtype=torch.int8), torch.zeros(-(-n // 256))
        self.q4, self.s4 = torch.zeros((n + 1) // 2, dtype=torch.uint8), torch.zeros(-(-n // 64))
        self.q2, self.s2 = torch.zeros((n + 3) // 4, dtype=torch.uint8), torch.zeros(-(-n // 64))
        self.indices = torch.zeros(n // 5, dtype=torch.int32)
        self.values = torch.zeros(n // 5)
        self.packed = torch.zeros(kernels.packed_bound(n // 100, n) + n // 50, dtype=torch.uint8)
        # Thresholds for g + start, the state in which every selection starts.
        self.least = {ratio: kernels.threshold(self.g, self.start, int(n * ratio)) for ratio in (0.1, 0.01, 0.001)}
        found = kernels.select(self.g, None, kernels.threshold(self.g, None, n // 100), self.indices, self.values)
        self.count = min(found.count, n // 100)
        self.sorted = self.indices[: self.count].clone()
        self.used = kernels.pack_indices(self.sorted, self.count, n, self.packed)

    def address(self, tensor: Tensor) -> int:
        return tensor.data_ptr()

    def reset(self) -> None:
        self.r.copy_(self.start)

    def select(self, ratio: float, threads: int = 1) -> object:
        return kernels.select(self.g, self.r, self.least[ratio], self.indices, self.values, threads=threads)

    def torch_topk(self) -> None:
        a = self.r.add_(self.g)
        _, places = a.abs().topk(self.n // 100, sorted=False)
        self.values[: places.numel()] = a[places]
        a.index_fill_(0, places, 0.0)

    def torch_int8(self) -> None:
        a = self.r.add_(self.g)
        rows = a[: self.n // 256 * 256].view(-1, 256)
        scale = rows.abs().amax(dim=1, keepdim=True) / 127
        q = (rows / scale).round_()
        self.q8[: rows.numel()].view(-1, 256).copy_(q)
        rows.sub_(q.mul_(scale))

    def torch_half(self) -> None:
        a = self.r.add_(self.g)
        self.half.copy_(a)
        a.sub_(self.half)

    def contestants(self) -> list[Contestant]:
        g, r, n, k = self.g, self.r, self.n, kernels
        floor = (self.address(g), self.address(r), n)
        return [
            Contestant("floor: r += g", lambda: _native.add(*floor, 1)),
            Contestant("memcpy g", lambda: self.out.copy_(g)),
            Contestant("accumulate", lambda: k.accumulate(g, r)),
            Contestant("select 10 %", lambda: self.select(0.1)),
            Contestant("select 1 %", lambda: self.select(0.01)),
            Contestant("select 0.1 %", lambda: self.select(0.001)),
            Contestant("floor, 2 threads", lambda: _native.add(*floor, 2)),
            Contestant("select 1 %, 2 threads", lambda: self.select(0.01, 2)),
            Contestant("encode fp16", lambda: k.encode_half(g, r, self.half)),
            Contestant("encode bf16", lambda: k.encode_half(g, r, self.brain)),
            Contestant("encode int8", lambda: k.encode_int8(g, r, self.q8, self.s8)),
            Contestant("encode int8, stochastic", lambda: k.encode_int8(g, r, self.q8, self.s8, 1)),
            Contestant(
                "encode int8, stochastic, 2 threads", lambda: k.encode_int8(g, r, self.q8, self.s8, 1, threads=2)
            ),
            Contestant("encode int4", lambda: k.encode_int4(g, r, self.q4, self.s4)),
            Contestant("encode int4, stochastic", lambda: k.encode_int4(g, r, self.q4, self.s4, 1)),
            Contestant("encode int2", lambda: k.encode_int2(g, r, self.q2, self.s2)),
            Contestant("encode int2, stochastic", lambda: k.encode_int2(g, r, self.q2, self.s2, 1)),
            Contestant("decode fp16, add", lambda: k.decode_half(self.half, self.out, 0.5, True)),
            Contestant("decode int8, add", lambda: k.decode_int8(self.q8, self.s8, self.out, 0.5, True)),
            Contestant("decode int4, add", lambda: k.decode_int4(self.q4, self.s4, self.out, 0.5, True)),
            Contestant("decode int2, add", lambda: k.decode_int2(self.q2, self.s2, self.out, 0.5, True)),
            Contestant("gather 1 %", lambda: k.gather(g, r, self.sorted, self.values, self.count)),
            Contestant("scatter_add 1 %", lambda: k.scatter_add(self.sorted, self.values, self.count, self.out)),
            Contestant("threshold 1 %", lambda: k.threshold(g, r, n // 100)),
            Contestant("threshold 0.1 %", lambda: k.threshold(g, r, n // 1000)),
            Contestant("pack indices 1 %", lambda: k.pack_indices(self.sorted, self.count, n, self.packed)),
            Contestant("unpack indices 1 %", self.unpack),
            Contestant("crc32c of g", lambda: k.checksum(g.view(torch.uint8))),
            Contestant("torch fp16 feedback", self.torch_half),
            Contestant("torch int8 feedback", self.torch_int8, slow=True),
            Contestant("select_largest 1 %", lambda: k.select_largest(g, r, n // 100, self.indices, self.values)),
            Contestant("select_largest 0.1 %", lambda: k.select_largest(g, r, n // 1000, self.indices, self.values)),
            Contestant("select_exact 1 %", lambda: k.select_exact(g, r, n // 100, self.indices, self.values)),
            Contestant("torch topk feedback 1 %", self.torch_topk, slow=True),
        ]

    def unpack(self) -> None:
        kernels.unpack_indices(self.packed[: self.used], self.count, self.n, self.indices)


def lap(arena: Arena, one: Contestant) -> tuple[float, bool]:
    """Seconds of one call from a fresh residual, and whether the core was not taken by another process."""
    arena.reset()
    switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
    begin = time.perf_counter()
    one.run()
    taken = time.perf_counter() - begin
    return taken, resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw == switches


def compare(arena: Arena, over: Contestant, under: Contestant, rounds: int) -> dict[str, float]:
    """The ratio of `over` to `under`, the two alternating: median and quartiles, and best against best.

    Rounds in which another process took the core are repeated, up to three times as many in all.
    """
    clean: list[tuple[float, float]] = []
    every: list[tuple[float, float]] = []
    while len(clean) < rounds and len(every) < 3 * rounds:
        (a, calm), (b, calm_too) = lap(arena, over), lap(arena, under)
        every.append((a, b))
        clean += [(a, b)] if calm and calm_too else []
    pairs = clean if len(clean) >= 3 else every
    each = sorted(a / b for a, b in pairs)
    best = min(a for a, _ in pairs) / min(b for _, b in pairs)
    quarter = len(each) // 4
    median = statistics.median(each)
    return {"median": median, "low": each[quarter], "high": each[-1 - quarter], "best": best, "rounds": len(pairs)}


# The ratio of the best times is what the machine can do; on a shared one, medians of two threads reflect other load.
RATIOS = [
    ("select 1 % against the floor", "floor: r += g", "select 1 %", 0.8),
    ("select 0.1 % against the floor", "floor: r += g", "select 0.1 %", 0.9),
    ("select 1 % against torch's top-k way", "torch topk feedback 1 %", "select 1 %", 30.0),
    ("the largest 1 %, everything included, against the floor", "floor: r += g", "select_largest 1 %", None),
    ("select 1 %, two threads against one", "select 1 %", "select 1 %, 2 threads", 1.7),
    ("floor, two threads against one", "floor: r += g", "floor, 2 threads", None),
    ("int8, two threads against one", "encode int8, stochastic", "encode int8, stochastic, 2 threads", None),
    ("int8 against torch's", "torch int8 feedback", "encode int8", None),
    ("fp16 against torch's", "torch fp16 feedback", "encode fp16", None),
    ("encode int2 against int4", "encode int4", "encode int2", 1.0),
    ("encode int2 against int4, both stochastic", "encode int4, stochastic", "encode int2, stochastic", 1.0),
    ("decode int2 against int4", "decode int4, add", "decode int2, add", 1.0),
]


def times_of(arena: Arena, contestants: list[Contestant], rounds: int) -> dict[str, list[float]]:
    """Seconds by contestant, every contestant once per round; the first round is warm-up and not counted."""
    times: dict[str, list[float]] = {one.name: [] for one in contestants}
    for turn in range(rounds + 1):
        for one in contestants:
            if not (one.slow and turn > SLOW_ROUNDS):
                times[one.name].append(lap(arena, one)[0])
    return {name: taken[1:] for name, taken in times.items()}


def show_times(n: int, times: dict[str, list[float]], console: Console) -> None:
    table = Table(title=f"{n:,} elements, {_native.isa()}")
    for column in ("kernel", "best ms", "median ms", "of the floor's speed (best)", "GB/s of g (best)"):
        table.add_column(column, justify="left" if column == "kernel" else "right")
    floor = min(times["floor: r += g"])
    for name, taken in times.items():
        best = min(taken)
        row = (best * 1e3, statistics.median(taken) * 1e3, floor / best, 4 * n / best / 1e9)
        table.add_row(name, *(f"{x:.3f}" if i < 2 else f"{x:.2f}" for i, x in enumerate(row)))
    console.print(table)


def show_ratios(ratios: dict[str, dict[str, float]], console: Console) -> None:
    table = Table(title="alternating pairs: median of the ratios within rounds")
    for column in ("ratio", "median", "quartiles", "best / best", "rounds", "target"):
        table.add_column(column, justify="left" if column == "ratio" else "right")
    for label, _, _, target in RATIOS:
        found = ratios[label]
        spread = f"{found['low']:.2f}-{found['high']:.2f}"
        goal = "" if target is None else f">= {target:g}"
        table.add_row(label, f"{found['median']:.2f}", spread, f"{found['best']:.2f}", f"{found['rounds']:.0f}", goal)
    console.print(table)


def bench(n: int, rounds: int, console: Console) -> dict[str, object]:
    arena = Arena(n)
    contestants = arena.contestants()
    by_name = {one.name: one for one in contestants}
    times = times_of(arena, contestants, max(3, rounds // 4))
    ratios = {}
    pair_rounds = rounds * min(10, max(1, LONG // n))
    for label, over, under, _ in RATIOS:
        slow = by_name[over].slow or by_name[under].slow
        ratios[label] = compare(arena, by_name[over], by_name[under], SLOW_ROUNDS if slow else pair_rounds)
    show_times(n, times, console)
    show_ratios(ratios, console)
    return {
        "n": n,
        "best_ms": {name: round(min(taken) * 1e3, 4) for name, taken in times.items()},
        "ratios": {label: {key: round(x, 3) for key, x in found.items()} for label, found in ratios.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--large", action="store_true", help="also 138 M elements (VGG-16); needs 8 GB and minutes")
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--size", type=int, nargs="*", help="other sizes")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    sizes = arguments.size or (SIZES + ([LARGE] if arguments.large else []))
    console = Console()
    results = [bench(n, arguments.rounds, console) for n in sizes]
    print(json.dumps({"benchmark": "kernels", "isa": _native.isa(), "rounds": arguments.rounds, "results": results}))


if __name__ == "__main__":
    main()
