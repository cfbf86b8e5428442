"""Accuracy under loss: real training with lost packets on the way to the shard owners, and the effect of each remedy.

    python benchmarks/ltp_accuracy.py [--data fashion-mnist] [--steps 300] [--seeds 3] [--json FILE]

The demo's CNN, ranks in one process, the sharded exchange over the loopback transport with scripted loss: the same code
that runs over LTP, without network delays. Loss is per packet of 1400 bytes, and lost packets are not sent again, which
is more loss than Early Close accepts. `no count` divides by all ranks whatever arrived; `no return` drops what was lost
instead of returning it to the residual. Cases that are already in the file are not run again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradwire.compress.base import ChunkSpan
from gradwire.compress.build import build_codec
from gradwire.demo.data import Dataset, load
from gradwire.demo.train import ConvNet
from gradwire.exchange.buffer_pool import BufferLease, BufferPool
from gradwire.exchange.chunk import Chunk
from gradwire.exchange.sharded import sharded
from gradwire.level import Level
from gradwire.transport.lanes.loopback import Loopback, seeded_loss

# name, loss rate, packets in a burst, contributors counted, losses returned
CASES: list[tuple[str, float, int, bool, bool]] = [
    ("lossless", 0.0, 1, True, True),
    ("0.1 %", 0.001, 1, True, True),
    ("0.5 %", 0.005, 1, True, True),
    ("1 %", 0.01, 1, True, True),
    ("2 %", 0.02, 1, True, True),
    ("5 %", 0.05, 1, True, True),
    ("5 % in bursts of 5", 0.05, 5, True, True),
    ("20 %", 0.2, 1, True, True),
    ("20 %, no count", 0.2, 1, False, True),
    ("20 %, no return", 0.2, 1, True, False),
    ("20 %, neither", 0.2, 1, False, False),
]


class World:
    """The residuals of all ranks, and one exchange per step."""

    def __init__(self, ranks: int, numel: int, case: tuple[str, float, int, bool, bool], seed: int) -> None:
        _, rate, burst, self._count, self._return = case
        self._ranks, self._codec = ranks, build_codec(Level.parse("fp16"))
        self._residuals = [torch.zeros(numel) for _ in range(ranks)]
        self._owned: list[dict[tuple[int, int], Tensor]] = [{} for _ in range(ranks)]
        self._pools = [BufferPool() for _ in range(ranks)]
        self._loopback = Loopback(ranks, loss=seeded_loss(rate, seed, burst))
        self._lanes = [self._loopback.lane(rank) for rank in range(ranks)]

    def exchange(self, gradients: list[Tensor], step: int) -> None:
        threads = [
            threading.Thread(target=self._one, args=(rank, gradients[rank], step)) for rank in range(self._ranks)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)

    def _one(self, rank: int, gradient: Tensor, step: int) -> None:
        lease = BufferLease(self._pools[rank], gradient.device)
        span = ChunkSpan(step, 0, 0, gradient.numel())
        owner = lambda at, numel: self._owned[rank].setdefault((at, numel), torch.zeros(numel))  # noqa: E731
        chunk = Chunk(span, gradient, self._residuals[rank], owner, rank, self._ranks, lambda *_: None, lease,
                      True, 0.5, self._count, self._return)  # fmt: skip
        for op in sharded(chunk, self._codec):
            self._lanes[rank].start(op).wait()
        lease.end()


def train(case: tuple[str, float, int, bool, bool], seed: int, data: Dataset, options: argparse.Namespace) -> float:
    torch.manual_seed(seed)
    net = ConvNet(data.train_images.shape[-1])
    optimizer = torch.optim.SGD(net.parameters(), lr=options.rate, momentum=0.9)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, options.rate, total_steps=options.steps)
    generator = torch.Generator().manual_seed(seed)
    numel = sum(parameter.numel() for parameter in net.parameters())
    world = World(options.ranks, numel, case, seed)
    for step in range(options.steps):
        gradients = []
        for _ in range(options.ranks):
            picked = torch.randint(len(data.train_images), (options.batch,), generator=generator)
            net.zero_grad(set_to_none=True)
            F.cross_entropy(net(data.train_images[picked]), data.train_labels[picked]).backward()
            gradients.append(torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None]))
        world.exchange(gradients, step)
        assert all(torch.equal(gradients[0], other) for other in gradients[1:]), "replicas differ"
        _set_gradients(net, gradients[0])
        optimizer.step()
        schedule.step()
    return test_accuracy(net, data)


def test_accuracy(net: nn.Module, data: Dataset) -> float:
    net.eval()
    with torch.no_grad():
        correct = [
            (net(images).argmax(1) == labels).sum()
            for images, labels in zip(data.test_images.split(1000), data.test_labels.split(1000), strict=True)
        ]
    return float(torch.stack(correct).sum()) / len(data.test_labels)


def _set_gradients(net: nn.Module, flat: Tensor) -> None:
    at = 0
    for parameter in net.parameters():
        parameter.grad = flat[at : at + parameter.numel()].view_as(parameter)
        at += parameter.numel()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="fashion-mnist")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rate", type=float, default=0.05)
    parser.add_argument("--case", action="append", help="only these, beside lossless")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = load(options.data, options.data_dir)
    rows: list[dict[str, Any]] = []
    if options.json and options.json.is_file():
        rows = json.loads(options.json.read_text())
    known = {row["case"] for row in rows}
    for case in CASES:
        if case[0] in known or (options.case and case[0] not in ("lossless", *options.case)):
            continue
        reached = [100 * train(case, seed, data, options) for seed in range(options.seeds)]
        lossless = rows[0]["reached"] if rows else reached
        gaps = [value - base for value, base in zip(reached, lossless, strict=True)]
        rows.append({"case": case[0], "accuracy": statistics.mean(reached), "points": statistics.mean(gaps),
                     "range": [min(gaps), max(gaps)], "reached": reached, "steps": options.steps,
                     "seeds": options.seeds})  # fmt: skip
        print(rows[-1], flush=True)
        if options.json:
            options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
