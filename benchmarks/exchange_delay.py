"""Time of one exchange on a far network, against one way's delay per phase and the time of its bytes.

    python benchmarks/exchange_delay.py [--kinds group,tcp,ltp] [--congestion cubic,bbr] [--dilate 8] [--out DIR]

Two sites of two hosts (wan-us-eu: 40 ms each way, 300 Mbit/s between them), 0.8 M elements. An exchange has two phases:
frames to the owners of shards, means to all. It is measured on rank 0 from its first encoding to the restored mean,
with and without a pause before it. The bound is 2 x (40 ms + the bytes of a phase between the sites at 300 Mbit/s).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

NETWORK, WORLD, NUMEL = "wan-us-eu", 4, 800_000
LEVELS = ("topk:0.01", "int4")
PAUSES = (0.0, 0.5)
# Exchanges before those that are measured: windows open at a level's first ones, later ones get used to the pause.
WARMUP, AGAIN = 12, 3
MARK = "EXCHANGE "
# A full packet's bytes on the wire and its payload, without which the bound could not be reached.
HEADERS = 1538 / 1433


def worker(kinds: list[str], count: int) -> None:
    import torch
    import torch.distributed as dist

    from gradwire.clock import MonotonicClock
    from gradwire.observe.event_bus import EventBus
    from gradwire.runtime.pipeline import Pipeline
    from gradwire.transport.carrier import open_carrier
    from gradwire.transport.config import TransportConfig

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    group, clock = dist.group.WORLD, MonotonicClock()
    assert group is not None
    for kind in kinds:
        carrier = open_carrier(TransportConfig(kind=kind, timeout=60.0), group, clock, True, EventBus(clock))  # type: ignore[arg-type]
        pipeline = Pipeline(carrier.open(2), lambda timing: None)
        for level in LEVELS:
            runner = Runner(pipeline, level, dist.get_rank(), carrier.tolerance)
            for pause in PAUSES:
                times = runner.times(pause, AGAIN if pause else WARMUP, count)
                if dist.get_rank() == 0:
                    row = {"kind": kind, "level": level, "pause": pause, "part": runner.part, "times": times}
                    row["pacing"] = pacing(carrier)
                    print(MARK + json.dumps(row), flush=True)
        pipeline.close()
        dist.barrier()
        carrier.close()
    dist.destroy_process_group()


def pacing(carrier: Any) -> float | None:
    """The fastest pacing rate to the other site, bytes per second of the host's clock; None where it is not known."""
    source = carrier.source()
    return max(source.stats()[peer]["pacing_rate"] for peer in range(WORLD // 2, WORLD)) if source else None


class Runner:
    """Exchanges of one bucket at one level."""

    def __init__(self, pipeline: Any, level: str, rank: int, tolerance: float) -> None:
        import torch

        from gradwire.compress.build import build_codec
        from gradwire.compress.error_feedback import ErrorFeedback
        from gradwire.exchange.buffer_pool import BufferPool
        from gradwire.level import Level
        from gradwire.types import Bucket, ParameterSlice

        self._pipeline, self._rank, self._tolerance = pipeline, rank, tolerance
        self._codec = build_codec(Level.parse(level))
        self._feedback, self._pool = ErrorFeedback(rank, WORLD), BufferPool()
        self._bucket = Bucket(0, 0, NUMEL, 4, (ParameterSlice("w", 0, (NUMEL,), NUMEL),), True)
        self._gradient = torch.randn(NUMEL, generator=torch.Generator().manual_seed(rank))
        self.part = self._codec.size_of(NUMEL // WORLD)

    def times(self, pause: float, warmup: int, count: int) -> list[float]:
        found = []
        for _ in range(warmup + count):
            time.sleep(pause)
            began = time.perf_counter()
            self._run()
            found.append(time.perf_counter() - began)
        return found[warmup:]

    def _run(self) -> None:
        import torch

        from gradwire.compress.base import ChunkSpan
        from gradwire.exchange.buffer_pool import BufferLease
        from gradwire.exchange.chunk import Chunk
        from gradwire.exchange.select import exchange

        cpu = torch.device("cpu")
        self._bucket = replace(self._bucket, step=self._bucket.step + 1)
        bucket, feedback = self._bucket, self._feedback
        lease = BufferLease(self._pool, cpu)
        chunk = Chunk(
            ChunkSpan(bucket.step, 0, 0, NUMEL, None),  # type: ignore[arg-type]
            self._gradient.clone(),
            feedback.worker(bucket, cpu),
            lambda start, numel: feedback.owner(bucket, (start, numel), cpu),
            self._rank,
            WORLD,
            lambda start, encoded: None,
            lease,
            tolerance=self._tolerance,
            defer=lambda complete: feedback.defer(bucket, complete),
        )
        self._pipeline.run(exchange(chunk, self._codec))
        lease.end()


def measure(kinds: list[str], congestion: str, count: int, dilate: float) -> list[dict[str, Any]]:
    from gradwire.lab import Lab
    from gradwire.network import preset

    network = preset(NETWORK, WORLD)
    hosts = tuple(replace(host, congestion=None) for host in network.hosts)
    lines: list[str] = []
    with Lab(replace(network, congestion=congestion, hosts=hosts), dilate=dilate) as lab:
        result = lab.run(
            [sys.executable, __file__, "--worker", "--kinds", ",".join(kinds), "--count", str(count)],
            timeout=1200,
            on_line=lambda host, line: lines.append(line),
        )
    rows = [json.loads(line.removeprefix(MARK)) for line in lines if line.startswith(MARK)]
    if not rows:
        sys.exit("\n".join(lines[-20:]))
    trunk = min((link.spec for link in network.links), key=lambda spec: float(spec.mean_rate))
    for row in rows:
        crossing = (WORLD // 2) ** 2 * row["part"] * HEADERS
        row["bound"] = 2 * (float(trunk.delay) + crossing / float(trunk.mean_rate))
        row["congestion"], row["lab"] = congestion, result.stats.verdict
    return rows


def page(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| TCP | lanes | level | pause, s | bound, ms | median, ms | 90th percentile | median / bound |",
        "|" + "---|" * 8,
    ]
    for row in rows:
        median, ninth = statistics.median(row["times"]), sorted(row["times"])[int(0.9 * len(row["times"]))]
        lines.append(
            f"| {row['congestion']} | {row['kind']} | {row['level']} | {row['pause']:g} | {row['bound'] * 1e3:.0f} "
            f"| {median * 1e3:.0f} | {ninth * 1e3:.0f} | {median / row['bound']:.2f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default="group,tcp,ltp")
    parser.add_argument("--congestion", default="cubic,bbr")
    parser.add_argument("--count", type=int, default=16)
    parser.add_argument("--dilate", type=float, default=1.0, help="stretch time by this factor on a busy machine")
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    kinds = options.kinds.split(",")
    if options.worker:
        worker(kinds, options.count)
        return
    controls = options.congestion.split(",")
    rows = [row for control in controls for row in measure(kinds, control, options.count, options.dilate)]
    print(page(rows))
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "exchange-delay.json").write_text(json.dumps(rows, indent=1) + "\n")
        (options.out / "exchange-delay.md").write_text("# Time of an exchange on a far network\n\n" + page(rows))


if __name__ == "__main__":
    main()
