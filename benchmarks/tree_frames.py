"""Tree frames: what a frame along a tree costs the processors of its two ends.

    python benchmarks/tree_frames.py [--ranks 4] [--numel 800000]

Executors of some ranks in one process, over LTP on loopback: processor time of whole steps, divided by the frames that
were sent. Processor time hardly depends on what else the machine does. Half of it, without the codec's part, is
`gradwire.tree.frame_cost.FRAME`.
"""

from __future__ import annotations

import argparse
import threading
import time
from contextlib import ExitStack

import numpy as np
import torch

from gradwire.level import Level
from gradwire.plan.job import ReductionJob
from gradwire.plan.matrix import Matrix
from gradwire.plan.membership.member import Member
from gradwire.plan.planners.registry import make_plan
from gradwire.sites.plan_shape import PlanShape
from gradwire.transport.wires.ltp import Endpoint
from gradwire.tree.accumulator import frame_bytes, mask_bytes
from gradwire.tree.build import TreeParts, build_executor
from gradwire.tree.executor import TreeExecutor
from gradwire.tree.executor_config import ExecutorConfig
from gradwire.tree.frame_cost import FRAME, frame_seconds
from gradwire.tree.membership_listener import MembershipListener
from gradwire.tree.partition import Partitioner, chunk_for
from gradwire.tree.request import BucketRequest
from gradwire.types import Bucket, Plan

SECRET = bytes(range(32))
LEVELS = ("int4", "int8", "sharedk:0.1+int8")
STEPS = 6


class Listener(MembershipListener):
    """Nobody is lost here."""


def connected(stack: ExitStack, ranks: int) -> list[Endpoint]:
    ends = [stack.enter_context(Endpoint(rank, SECRET)) for rank in range(ranks)]
    pairs = [(end, other) for end in ends for other in ends if other is not end]
    for end, other in pairs:
        end.loop.connect(other.rank, end.config.host, other.port)
    for end, other in pairs:
        assert end.loop.wait_connected(other.rank, 30.0) == "connected"
    return ends


def measured(plan: Plan, ranks: int, numel: int, level: Level) -> float:
    """Seconds of processor time of a step, of all ranks together."""
    with ExitStack() as stack:
        wires = connected(stack, ranks)
        executors = []
        for rank in range(ranks):
            member = Member(rank, range(ranks), plan, lambda members, version: plan)
            parts = TreeParts(wire=wires[rank], member=member, config=ExecutorConfig(), listener=Listener())
            executors.append(build_executor(parts))
            executors[-1].start()
        gradients = [torch.randn(numel) for _ in range(ranks)]
        residuals = [torch.zeros(numel) for _ in range(ranks)]
        step(executors, gradients, residuals, level, 0)
        began = time.process_time()
        for number in range(1, STEPS + 1):
            step(executors, gradients, residuals, level, number)
        took = (time.process_time() - began) / STEPS
        for executor in executors:
            executor.close()
    return took


def step(
    executors: list[TreeExecutor], gradients: list[torch.Tensor], residuals: list[torch.Tensor], level: Level, at: int
) -> None:
    left, errors = threading.Semaphore(0), list[BaseException]()

    def done(error: BaseException | None) -> None:
        errors.extend([error] if error is not None else [])
        left.release()

    bucket = Bucket(0, at, gradients[0].numel(), 4, (), True)
    for executor, gradient, residual in zip(executors, gradients, residuals, strict=True):
        executor.submit(BucketRequest(bucket, level, gradient, residual, done))
    for _ in executors:
        assert left.acquire(timeout=60.0)
    if errors:
        raise errors[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--numel", type=int, default=800_000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rate = np.full((options.ranks, options.ranks), 12.5e6)
    rate[0, 1] = rate[1, 0] = 0.5e6  # one bad link, so that trees have several hops
    for text in LEVELS:
        level = Level.parse(text)
        ratio = frame_bytes(level, options.numel) / (4 * options.numel)
        job = ReductionJob(4 * options.numel, chunk_for(4 * options.numel, ratio), ratio)
        plan = make_plan(Matrix.of(rate), job, "loadaware")
        pieces = Partitioner(plan).partition(options.numel, ratio)
        phases = 2 if mask_bytes(level, options.numel) else 1
        frames = len(pieces) * PlanShape.of(plan, 0).frames * options.ranks * phases
        took = measured(plan, options.ranks, options.numel, level)
        codec = 2 * (frame_seconds(level, pieces[0].numel) - FRAME)
        each = (took / frames - codec) / 2
        whole = f"{frames:.0f} frames, {1e3 * took:.1f} ms of all processors a step"
        print(f"{text}: {whole}; an end of a frame without codec {1e6 * each:.0f} us (assumed {1e6 * FRAME:.0f})")


if __name__ == "__main__":
    main()
