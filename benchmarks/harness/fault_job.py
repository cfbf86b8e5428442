"""One rank of a training job that something is done to. Reads its job file, tells every step as a JSON line.

A line names the step and a hash of all parameters after it, so that whoever reads all ranks' lines knows whether the
replicas were the same at every step, whatever happened later. An error is told and then raised, as in any program:
how the process ends is part of what is measured. Faults that can only be made inside a process are made here.
"""

from __future__ import annotations

import argparse
import json
import os
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
from harness.faulty import MARK

BATCH = 16


def say(**facts: Any) -> None:
    print(MARK + json.dumps({"rank": int(os.environ["RANK"]), "at": time.monotonic(), **facts}), flush=True)


def hash_of(module: nn.Module) -> int:
    total = 0
    for parameter in module.parameters():
        total = zlib.crc32(parameter.detach().numpy().tobytes(), total)
    return total


class NoMemory:
    """A codec whose machine has no memory left from a step on: the allocator's own error, as real as it gets."""

    def __init__(self, codec: Any, step: int) -> None:
        self._codec, self._step = codec, step

    def __getattr__(self, name: str) -> Any:
        return getattr(self._codec, name)

    def encode(self, gradient: Any, residual: Any, frame: Any, stretch: Any, seed: Any) -> Any:
        if stretch.step == self._step:
            say(told="injected")
            torch.empty(1 << 50)
        return self._codec.encode(gradient, residual, frame, stretch, seed)


def encoder_without_memory(step: int) -> None:
    from gradwire.compress import codec_cache as codecs

    build = codecs.build_codec
    codecs.build_codec = lambda *given, **named: NoMemory(build(*given, **named), step)  # type: ignore[assignment]


def another_release(step: int) -> None:
    gradwire.__version__ = "9.9.9"


def another_pulse(step: int) -> None:
    """A release that forgot to say so: its pulses have another layout."""
    from gradwire.sense import pulse

    pulse.VERSION = 9  # type: ignore[misc]


# Made before the job begins, on the fault's rank only.
INSIDE: dict[str, Callable[[int], None]] = {
    "memory": encoder_without_memory,
    "release": another_release,
    "pulse": another_pulse,
}


def jump_wall_clock(hours: float) -> None:
    """What a wrong NTP answer does, as far as this process can see."""
    real = time.time
    time.time = lambda: real() + 3600 * hours


def train(job: dict[str, Any], rank: int) -> None:
    """1. attach, 2. train on real data, telling each step, 3. leave together."""
    data = load("digits")
    generator = torch.Generator().manual_seed(rank)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    model = DistributedDataParallel(net, broadcast_buffers=False)
    say(told="attaching")
    handle = gradwire.attach(model, job["config"])  # 1
    links: dict[int, dict[str, float]] = {}
    handle.add_sink(lambda event: links.update(known(event)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9 if job["returns"] else 0.0)
    if job["returns"]:
        handle.hand_over(optimizer)
        handle.add_sink(tell_losses)
    say(told="attached")
    while (step := handle.step) < job["steps"]:  # 2
        if job["inside"] == "clock" and rank == job["rank"] and step == job["step"]:
            say(told="injected")
            jump_wall_clock(7.0)
        pick = torch.randint(len(data.train_labels), (BATCH,), generator=generator)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data.train_images[pick]), data.train_labels[pick])
        loss.backward()
        optimizer.step()
        handle.note(loss=float(loss.detach()))
        if handle.step:  # the first backward of a rank that was started anew is its own
            say(told="step", step=handle.step - 1, hash=hash_of(net))
        time.sleep(job["pace"])
    say(told="trained", hash=hash_of(net), accuracy=accuracy(net, data), known=links)
    handle.close()  # 3


def known(event: Any) -> dict[int, dict[str, float]]:
    """By peer, what an event of links knows of the way there."""
    if not isinstance(event, LinksSensed):
        return {}
    names = ("rate", "rtt", "loss", "queueing")
    told = {link.destination: {name: getattr(link, name) for name in names} for link in event.links}
    return {peer: {name: value for name, value in values.items() if value is not None} for peer, values in told.items()}


def tell_losses(event: Any) -> None:
    if isinstance(event, Faulted) and event.kind in ("peer_lost", "peer_back"):
        say(told=event.kind, peer=event.peer, detail=event.detail)


def accuracy(net: nn.Module, data: Any) -> float:
    with torch.no_grad():
        return float((net(data.test_images).argmax(1) == data.test_labels).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", type=Path)
    job = json.loads(parser.parse_args().job.read_text())
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    say(told="begun", pid=os.getpid())
    if rank == job["rank"] and job["inside"] in INSIDE:
        INSIDE[job["inside"]](job["step"])
    gradwire.init_process_group("gloo", timeout=timedelta(seconds=job["patience"]))
    try:
        train(job, rank)
    except Exception as error:
        say(told="failed", error=type(error).__name__, text=str(error).splitlines()[0] if str(error) else "")
        raise
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
