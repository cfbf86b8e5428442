"""Cost of recording: time of `emit` and of the writer thread, as a share of a step.

    python benchmarks/recording_cost.py [--ranks 2] [--steps 200] [--detail steps|buckets] [--model demo|resnet18]
                                  [--transport group|ltp|tcp] [--out docs/results]

With --out the row is added to recording-cost.json.

Ranks train on loopback with level auto: the demo's CNN (422 k parameters, batch 32: about as short as steps
get), or ResNet-18's shapes with no arithmetic at all (nothing but synchronisation). A difference of half a per cent
is smaller than the noise between two runs, so the time is measured directly: wall time of every `emit`, processor time
of counting every transfer, of reporting them and of every flush, in whatever thread. The measurement itself takes about
as long as the counting, and is included.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire.runtime.builder
from gradwire.demo.train import ConvNet
from gradwire.events import Event
from gradwire.observe import recorder as module
from gradwire.transport.traffic import Traffic
from gradwire.transport.wires.ledger import Ledger
from gradwire.transport.wires.native import NativeWire
from harness.facts import machine_facts
from hook import Shapes, resnet18_shapes


class TimedRecorder(module.Recorder):
    """A recorder that sums its own time."""

    emitting = 0.0
    writing = 0.0
    emitted = 0

    def emit(self, event: Event) -> None:
        begin = time.perf_counter()
        super().emit(event)
        TimedRecorder.emitting += time.perf_counter() - begin
        TimedRecorder.emitted += 1

    def flush(self) -> None:
        begin = time.thread_time()
        super().flush()
        TimedRecorder.writing += time.thread_time() - begin


class MethodTimer:
    """Wraps methods and sums their processor time; none of them runs in the training thread."""

    spent = 0.0

    @classmethod
    def around(cls, owner: type, name: str) -> None:
        method = getattr(owner, name)

        def clocked(*args: Any, **named: Any) -> Any:
            begin = time.thread_time()
            try:
                return method(*args, **named)
            finally:
                cls.spent += time.thread_time() - begin

        setattr(owner, name, clocked)


def timed_methods(transport: str) -> list[tuple[type, str]]:
    """What counts and reports transfers; over a wire, `record` includes the ledger."""
    methods: list[tuple[type, str]] = [(NativeWire, "record"), (Traffic, "report")]
    return [*methods, (Ledger, "add_received")] if transport == "group" else methods


def model_of(name: str, rank: int) -> tuple[nn.Module, torch.Tensor]:
    if name == "demo":
        return ConvNet(28), torch.randn(32, 1, 28, 28)
    return Shapes(resnet18_shapes(), rank), torch.zeros(1, requires_grad=True)


def worker(rank: int, options: argparse.Namespace, port: int, folder: str, results: Any) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=options.ranks)
    gradwire.runtime.builder.Recorder = TimedRecorder  # type: ignore[misc]
    for owner, name in timed_methods(options.transport):
        MethodTimer.around(owner, name)
    net, inputs = model_of(options.model, rank)
    model = DistributedDataParallel(net, bucket_cap_mb=1 if options.model == "demo" else 5)
    config = {"level": options.level, "observe": {"detail": options.detail}, "record": folder}
    config |= {"transport": {"kind": options.transport}, "compress": {"warmup": 0}}
    handle = gradwire.attach(model, config)
    for turn in range(options.steps + 20):
        if turn == 20:
            dist.barrier()
            begin, TimedRecorder.emitting, TimedRecorder.writing, TimedRecorder.emitted = (
                time.perf_counter(),
                0.0,
                0.0,
                0,
            )
            MethodTimer.spent = 0.0
        model(inputs).sum().backward()
    spent = time.perf_counter() - begin
    costs = (spent, TimedRecorder.emitting, TimedRecorder.writing, TimedRecorder.emitted, MethodTimer.spent)
    handle.close()
    if rank == 0:
        results.put(costs)
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--detail", choices=["steps", "buckets"], default="steps")
    parser.add_argument("--model", choices=["demo", "resnet18"], default="demo")
    parser.add_argument("--level", default="auto")
    parser.add_argument("--transport", choices=["group", "ltp", "tcp"], default="group")
    parser.add_argument("--out", type=Path, help="a directory for recording-cost.json")
    options = parser.parse_args()
    out, options.out = options.out, None
    context = mp.get_context("spawn")
    results = context.SimpleQueue()
    port = 20000 + os.getpid() % 20000
    with tempfile.TemporaryDirectory() as folder:
        processes = mp.spawn(worker, (options, port, folder, results), nprocs=options.ranks, join=False)
        spent, emitting, writing, emitted, counting = results.get()
        processes.join()
        size = sum(path.stat().st_size for path in Path(folder).iterdir())
    steps = options.steps
    facts = {
        "step_ms": 1e3 * spent / steps,
        "events_a_step": emitted / steps,
        "emit_us_a_step": 1e6 * emitting / steps,
        "writer_us_a_step": 1e6 * writing / steps,
        "transfers_us_a_step": 1e6 * counting / steps,
        "share_of_step": (emitting + writing + counting) / spent,
        "disk_bytes_a_rank_and_step": size / options.ranks / (steps + 20),
    }
    settings = {name: value for name, value in vars(options).items() if name != "out"}
    print(json.dumps({"bench": "recording-cost", **settings, **facts}))
    if out:
        write(out / "recording-cost.json", settings, facts)


def write(path: Path, settings: dict[str, Any], facts: dict[str, float]) -> None:
    """Replace the row with the same settings, or add one."""
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    rows = [row for row in rows if any(row[name] != value for name, value in settings.items())]
    result = {"machine": machine_facts(), "rows": [*rows, {**settings, **facts}]}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
