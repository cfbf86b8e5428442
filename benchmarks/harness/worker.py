"""Worker: one rank of a bench run. Reads a job file, runs its blocks in order, reports each as a JSON line.

A block is one contestant's warm-up and measured steps on a fresh DDP model. All blocks of a run share the processes
and the network, so all contestants run under the same conditions; the blocks of contestants alternate.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from harness.contestants import Contestant, find
from harness.job import MARK, Block, Job
from harness.tcp_payload import difference, payload
from harness.workload import Workload, make

# Pause before and after a measurement, so that the link counters read around it contain only its bytes.
SETTLE_SECONDS = 0.15
MOST_STEPS = 40


def run_block(workload: Workload, block: Block, job: Job, stop: Stop, report: Callable[..., None]) -> None:
    """1. a fresh model, 2. warm up, 3. agree on the number of steps, 4. measure, 5. report."""
    contestant = find(block.contestant)
    gc.collect()
    model = DistributedDataParallel(
        workload.module(),
        bucket_cap_mb=contestant.bucket_mb,
        init_sync=False,  # modules are equal by construction, and sending 45 MB to every rank takes seconds
        gradient_as_bucket_view=True,
    )
    installed = contestant.install(model)  # 1
    try:
        report(event="block", contestant=block.contestant, repeat=block.repeat)
        steps = warm_up(workload, model, contestant, job) if not job.lasting else 0  # 2, 3
        settle()
        report(event="begin")
        settle()
        before, predicted_before, levels = payload(job.port), installed.predicted(), Counter(installed.levels())
        stop.begin(job.lasting)
        cpu, begin = time.process_time(), time.perf_counter()
        times, loss = [], 0.0
        while len(times) < steps if steps else not stop.reached(len(times)):  # 4
            started = time.perf_counter()
            loss = workload.step(model)
            times.append(time.perf_counter() - started)
        total, cpu = time.perf_counter() - begin, time.process_time() - cpu
        settle()
        carried = difference(before, payload(job.port))
        dist.barrier()  # no rank closes connections that another rank still reads
        report(
            event="end", times=times, total=total, cpu=cpu, loss=loss, data=workload.data,
            sent=carried.sent, retransmitted=carried.retransmitted,
            predicted=_less(installed.predicted(), predicted_before),
            levels=dict(Counter(installed.levels()) - levels),
        )  # fmt: skip  # 5
    finally:
        installed.close()


def _less(after: int | None, before: int | None) -> int | None:
    return None if after is None or before is None else after - before


class Stop:
    """Ends a block of fixed duration: rank 0 chooses a step that no rank can have started, and writes it to a file.

    Steps are synchronised, so no rank starts a step before rank 0 has finished the one before it.
    """

    def __init__(self, path: Path, rank: int) -> None:
        self._path, self._rank = path, rank
        self._until = 0.0

    def begin(self, lasting: float) -> None:
        self._until = time.perf_counter() + lasting

    def reached(self, step: int) -> bool:
        if self._rank == 0 and not self._path.exists() and time.perf_counter() >= self._until:
            self._path.with_suffix(".new").write_text(str(step + 2))
            self._path.with_suffix(".new").rename(self._path)
        return self._path.exists() and step >= int(self._path.read_text())


def warm_up(workload: Workload, model: DistributedDataParallel, contestant: Contestant, job: Job) -> int:
    """Number of steps to measure: as many as fit into the block, by rank 0's last warm-up step."""
    last = 0.0
    for _ in range(contestant.warmup):
        started = time.perf_counter()
        workload.step(model)
        last = time.perf_counter() - started
    steps = torch.tensor([max(job.fewest, min(MOST_STEPS, int(job.seconds / max(last, 1e-3))))])
    dist.broadcast(steps, 0)
    return int(steps)


def settle() -> None:
    dist.barrier()
    time.sleep(SETTLE_SECONDS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", type=Path)
    path: Path = parser.parse_args().job
    job = Job.read(path)
    rank = int(os.environ["RANK"])

    def report(**facts: Any) -> None:
        print(MARK + json.dumps({"rank": rank, **facts}), flush=True)

    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=job.timeout))
    try:
        workload = make(job.workload, rank)
        for turn, block in enumerate(job.blocks):
            run_block(workload, block, job, Stop(path.with_name(f"stop-{turn}"), rank), report)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
