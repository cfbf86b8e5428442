"""One rank of a training job with a fault. Reads its job file and reports every step as a JSON line.

A line holds the step and a hash of all parameters after it, so that the lines of all ranks show whether the replicas
were equal at every step. An error is reported and then raised: how the process ends is part of the measurement. Faults
that can only be injected inside a process are injected here.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import zlib
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.demo.data import load
from gradwire.events import Faulted, LinksSensed
from harness.fault_run import MARK

BATCH = 16


def report(**facts: Any) -> None:
    # One write: torch's own messages share the pipe, and print writes the end of the line separately.
    sys.stdout.write(MARK + json.dumps({"rank": int(os.environ["RANK"]), "at": time.monotonic(), **facts}) + "\n")
    sys.stdout.flush()


def hash_of(module: nn.Module) -> int:
    total = 0
    for parameter in module.parameters():
        total = zlib.crc32(parameter.detach().numpy().tobytes(), total)
    return total


class NoMemory:
    """A codec that runs out of memory at a given step: raises the allocator's own error."""

    def __init__(self, codec: Any, step: int) -> None:
        self._codec, self._step = codec, step

    def __getattr__(self, name: str) -> Any:
        return getattr(self._codec, name)

    def encode(self, gradient: Any, residual: Any, frame: Any, span: Any, seed: Any) -> Any:
        if span.step == self._step:
            report(kind="injected")
            torch.empty(1 << 50)
        return self._codec.encode(gradient, residual, frame, span, seed)


def encoder_without_memory(step: int) -> None:
    from gradwire.compress import codec_cache as codecs

    build = codecs.build_codec
    codecs.build_codec = lambda *given, **named: NoMemory(build(*given, **named), step)  # type: ignore[assignment]


def another_release(step: int) -> None:
    gradwire.__version__ = "9.9.9"


def another_pulse(step: int) -> None:
    """A release whose pulses have another layout but the same version."""
    from gradwire.sense import pulse

    pulse.VERSION = 9  # type: ignore[misc]


# Injected before the job starts, on the fault's rank only.
INSIDE: dict[str, Callable[[int], None]] = {
    "memory": encoder_without_memory,
    "release": another_release,
    "pulse": another_pulse,
}


def jump_wall_clock(hours: float) -> None:
    """Move this process's wall clock, as a wrong NTP answer would."""
    real = time.time
    time.time = lambda: real() + 3600 * hours


def train(job: dict[str, Any], rank: int) -> None:
    """1. attach, 2. train on real data and report each step, 3. close together."""
    data = load("digits")
    generator = torch.Generator().manual_seed(rank)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    model = DistributedDataParallel(net, broadcast_buffers=False)
    report(kind="attaching")
    handle = gradwire.attach(model, job["config"])  # 1
    links: dict[int, dict[str, float]] = {}
    handle.add_sink(lambda event: links.update(link_estimates(event)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9 if job["rejoins"] else 0.0)
    if job["rejoins"]:
        handle.hand_over(optimizer)
        handle.add_sink(report_losses)
    report(kind="attached")
    while (step := handle.step) < job["steps"]:  # 2
        if job["inside"] == "clock" and rank == job["rank"] and step == job["step"]:
            report(kind="injected")
            jump_wall_clock(7.0)
        pick = torch.randint(len(data.train_labels), (BATCH,), generator=generator)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data.train_images[pick]), data.train_labels[pick])
        loss.backward()
        optimizer.step()
        handle.note(loss=float(loss.detach()))
        if handle.step:  # the first backward of a restarted rank is local
            report(kind="step", step=handle.step - 1, hash=hash_of(net))
        time.sleep(job["step_seconds"])
    report(kind="trained", hash=hash_of(net), accuracy=accuracy(net, data), known=links)
    handle.close()  # 3


def link_estimates(event: Any) -> dict[int, dict[str, float]]:
    """The link estimates of an event, by peer."""
    if not isinstance(event, LinksSensed):
        return {}
    names = ("rate", "rtt", "loss", "queueing")
    estimates = {link.destination: {name: getattr(link, name) for name in names} for link in event.links}
    return {
        peer: {name: value for name, value in values.items() if value is not None} for peer, values in estimates.items()
    }


def report_losses(event: Any) -> None:
    if isinstance(event, Faulted) and event.kind in ("peer_lost", "peer_back"):
        report(kind=event.kind, peer=event.peer, detail=event.detail)


def accuracy(net: nn.Module, data: Any) -> float:
    with torch.no_grad():
        return float((net(data.test_images).argmax(1) == data.test_labels).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", type=Path)
    job = json.loads(parser.parse_args().job.read_text())
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    report(kind="started", pid=os.getpid())
    if rank == job["rank"] and job["inside"] in INSIDE:
        INSIDE[job["inside"]](job["step"])
    gradwire.init_process_group("gloo", timeout=timedelta(seconds=job["group_timeout"]))
    try:
        train(job, rank)
    except Exception as error:
        report(kind="failed", error=type(error).__name__, text=str(error).splitlines()[0] if str(error) else "")
        raise
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
