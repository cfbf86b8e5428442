"""Cost of a hook: plain DDP, torch's hooks and gradwire's levels on the same gradients, on loopback.

    python benchmarks/hook.py [--ranks 4] [--rounds 12] [--only ddp,gradwire:off]

The model has ResNet-18's parameter shapes (CIFAR, 11.2 M) and no arithmetic: backward returns prepared gradients, so
a step is almost only synchronisation. Contestants alternate within each round; shown are the median and the spread of
the ratio to plain DDP, round by round. Loopback has ample bandwidth: compression can only lose time here, and the
difference is its own cost.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import gradwire

CONTESTANTS = [
    "ddp", "gradwire:off", "fp16-hook", "gradwire:fp16", "powersgd-r4", "gradwire:lowrank:4", "gradwire:int8",
    "gradwire:int4", "gradwire:topk:0.01", "gradwire:topk:0.01+int8", "gradwire:sharedk:0.01+int8",
]  # fmt: skip


def resnet18_shapes() -> list[tuple[int, ...]]:
    """Parameter shapes of ResNet-18 for 32 x 32 images, in order."""
    shapes: list[tuple[int, ...]] = [(64, 3, 3, 3), (64,), (64,)]
    width = 64
    for stage in (64, 128, 256, 512):
        for block in range(2):
            shapes += [(stage, width, 3, 3), (stage,), (stage,), (stage, stage, 3, 3), (stage,), (stage,)]
            if block == 0 and stage != 64:
                shapes += [(stage, width, 1, 1), (stage,), (stage,)]
            width = stage
    return [*shapes, (10, 512), (10,)]


class _Emit(torch.autograd.Function):
    """Forward returns its input; backward returns the prepared gradient of a parameter."""

    @staticmethod
    def forward(ctx: Any, carry: Tensor, parameter: Tensor, gradient: Tensor) -> Tensor:
        ctx.gradient = gradient
        return carry.clone()

    @staticmethod
    def backward(ctx: Any, *carry: Tensor) -> tuple[Tensor, Tensor, None]:
        return carry[0], ctx.gradient, None


class Shapes(nn.Module):
    """A model that has parameters of the given shapes and computes nothing."""

    def __init__(self, shapes: list[tuple[int, ...]], rank: int) -> None:
        super().__init__()
        self.parts = nn.ParameterList([nn.Parameter(torch.zeros(shape)) for shape in shapes])
        generator = torch.Generator().manual_seed(rank)
        scales = torch.logspace(-4, -2, len(shapes))
        self.gradients = [torch.randn(s, generator=generator) * c for s, c in zip(shapes, scales, strict=True)]

    def forward(self, carry: Tensor) -> Tensor:
        for parameter, gradient in zip(self.parts, self.gradients, strict=True):
            carry = _Emit.apply(carry, parameter, gradient)
        return carry


def prepare(name: str, net: nn.Module) -> DistributedDataParallel:
    """The contestant's model with its best settings: PowerSGD runs on gloo only with one single bucket."""
    cap = 1000 if name.startswith("powersgd") else 25
    model = DistributedDataParallel(net, bucket_cap_mb=cap, gradient_as_bucket_view=True)
    if name == "fp16-hook":
        model.register_comm_hook(None, fp16_compress_hook)
    elif name.startswith("powersgd"):
        rank = int(name.removeprefix("powersgd-r"))
        state = PowerSGDState(None, matrix_approximation_rank=rank, start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook)
    elif name.startswith("gradwire:"):
        gradwire.attach(model, {"level": name.removeprefix("gradwire:"), "compress": {"warmup": 0}})
    return model


def step(model: DistributedDataParallel) -> tuple[float, float]:
    """Wall time and processor time (all threads of this rank) of one step."""
    model.zero_grad(set_to_none=True)
    dist.barrier()
    begin, spent = time.perf_counter(), time.process_time()
    model(torch.zeros(1, requires_grad=True)).backward()
    return time.perf_counter() - begin, time.process_time() - spent


def worker(rank: int, ranks: int, port: int, names: list[str], rounds: int, results: Any) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    net = Shapes(resnet18_shapes(), rank)
    models = {name: prepare(name, net if name == "ddp" else Shapes(resnet18_shapes(), rank)) for name in names}
    for model in models.values():
        for _ in range(4):
            step(model)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            times[name].append(step(models[name]))
    if rank == 0:
        results.put(times)
    dist.barrier()
    dist.destroy_process_group()


def measure(names: list[str], ranks: int, rounds: int) -> dict[str, list[tuple[float, float]]]:
    context = mp.get_context("spawn")
    results = context.SimpleQueue()
    port = 20000 + os.getpid() % 20000
    process = mp.spawn(worker, (ranks, port, names, rounds, results), nprocs=ranks, join=False)
    times: dict[str, list[tuple[float, float]]] = results.get()
    process.join()
    return times


def table(times: dict[str, list[tuple[float, float]]]) -> tuple[Table, dict[str, Any]]:
    base = "ddp" if "ddp" in times else next(iter(times))
    shown = Table(title=f"time of a step; speed as a ratio to {base} within each round")
    for column in ("contestant", "median ms", "CPU ms", "speed", "10 %..90 %"):
        shown.add_column(column, justify="left" if column == "contestant" else "right")
    facts: dict[str, Any] = {}
    for name, own in times.items():
        ratios = sorted(b[0] / o[0] for b, o in zip(times[base], own, strict=True))
        low, high = ratios[len(ratios) // 10], ratios[-1 - len(ratios) // 10]
        median = statistics.median(ratios)
        wall, cpu = (statistics.median(values) * 1e3 for values in zip(*own, strict=True))
        facts[name] = {"ms": wall, "cpu_ms": cpu, "speed": median, "p10": low, "p90": high}
        shown.add_row(name, f"{wall:.1f}", f"{cpu:.1f}", f"{median:.2f}x", f"{low:.2f}..{high:.2f}")
    return shown, facts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--only", default=",".join(CONTESTANTS), help="contestants, separated by commas")
    options = parser.parse_args()
    times = measure(options.only.split(","), options.ranks, options.rounds)
    shown, facts = table(times)
    Console().print(shown)
    print(json.dumps({"bench": "hook", "ranks": options.ranks, "rounds": options.rounds, "results": facts}))


if __name__ == "__main__":
    main()
