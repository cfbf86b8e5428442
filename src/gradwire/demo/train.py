"""Training script of the demo: ordinary DDP, started by torchrun or anything else that sets its variables.

With `--level` gradwire is attached, with `--powersgd` torch's hook is registered, without them this is plain DDP;
nothing else differs. Rank 0 prints progress as JSON lines, which the demo's view reads.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from gradwire.demo.data import Dataset, load
from gradwire.demo.plain import PlainLog
from gradwire.transport.exit_wait import wait_for_backend_threads

if TYPE_CHECKING:  # plain DDP does not import gradwire's integrations
    from gradwire.integrations.handle import Handle

# Weights of the first linear layer: with images of any size the network has about 422 thousand parameters.
HIDDEN_WEIGHTS = 64 * 7 * 7 * 128
# Times that accuracy is measured during training; the last time is at its end.
EVALUATIONS = 6


class ConvNet(nn.Module):
    """Two convolutions and two linear layers."""

    def __init__(self, size: int, classes: int = 10) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 32, 3, padding=1)
        self.second = nn.Conv2d(32, 64, 3, padding=1)
        flat = 64 * (size // 4) ** 2
        self.hidden = nn.Linear(flat, HIDDEN_WEIGHTS // flat)
        self.out = nn.Linear(HIDDEN_WEIGHTS // flat, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.first(images)), 2)
        x = F.max_pool2d(F.relu(self.second(x)), 2)
        return self.out(F.relu(self.hidden(x.flatten(1))))  # type: ignore[no-any-return]


def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Share of correct predictions on the test set, which the ranks divide among them."""
    rank, world = dist.get_rank(), dist.get_world_size()
    model.eval()
    with torch.no_grad():
        batches = zip(images[rank::world].split(500), labels[rank::world].split(500), strict=True)
        right = sum(int((model(x).argmax(1) == y).sum()) for x, y in batches)
    model.train()
    total = torch.tensor([right, len(labels[rank::world])], dtype=torch.float64)
    dist.all_reduce(total)
    return float(total[0] / total[1])


def train(options: argparse.Namespace, data: Dataset) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(options.seed)
    net = ConvNet(data.train_images.shape[-1])
    # torch's PowerSGD hook fails on gloo with more than one bucket.
    model = DistributedDataParallel(net, bucket_cap_mb=1000.0 if options.powersgd else options.bucket_mb)
    handle = None
    if options.level:
        import gradwire

        handle = gradwire.attach(model, options.level, record=options.record or None)
    log = handle or (power_sgd(model, options) if options.powersgd else PlainLog(options.record, model))
    optimizer = torch.optim.SGD(model.parameters(), lr=options.rate, momentum=0.9)
    count = min(options.samples or len(data.train_images), len(data.train_images))
    per_epoch = count // (options.batch * world)
    generator = torch.Generator().manual_seed(options.seed)
    total, spent, step = per_epoch * options.epochs, 0.0, 0
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, options.rate, total_steps=max(total, 1))
    for epoch in range(options.epochs):
        order = torch.randperm(count, generator=generator)[: per_epoch * options.batch * world]
        for indices in order.view(per_epoch, world, options.batch)[:, rank]:
            begin = time.perf_counter()
            loss = F.cross_entropy(model(data.train_images[indices]), data.train_labels[indices])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()
            took = time.perf_counter() - begin
            spent += took
            step += 1
            if isinstance(log, PlainLog):
                log.stepped()
            if step % 5 == 0 or step == total:
                report(rank, step=step, total=total, epoch=epoch, loss=loss.item(), seconds=spent)
                log.note(loss.item(), total_steps=total)
            if step * EVALUATIONS // total > (step - 1) * EVALUATIONS // total:
                share = accuracy(net, data.test_images, data.test_labels)
                log.note(accuracy=share, epoch=step / per_epoch, total_steps=total)
                report(rank, epoch=step / per_epoch, accuracy=share, seconds=spent)
    log.close()
    finish(rank, net, log, spent / max(step, 1))


def power_sgd(model: DistributedDataParallel, options: argparse.Namespace) -> PlainLog:
    """Register torch's PowerSGD hook; its steps before `start` send the whole gradient."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power

    start = 2
    state = power.PowerSGDState(None, matrix_approximation_rank=options.powersgd, start_powerSGD_iter=start)
    model.register_comm_hook(state, power.powerSGD_hook)
    whole = sum(parameter.numel() for parameter in model.parameters())

    def sent() -> int:
        return 4 * (min(state.iter, start) * whole + state.total_numel_after_compression)

    return PlainLog(options.record, model, f"PowerSGD rank {options.powersgd}", sent)


def finish(rank: int, net: nn.Module, log: Handle | PlainLog, step_seconds: float) -> None:
    """Check that all replicas are identical, then print the bytes sent and the reasons of the levels."""
    flat = torch.cat([p.detach().flatten() for p in net.parameters()])
    first = flat.clone()
    dist.broadcast(first, 0)
    identical = torch.tensor([float(torch.equal(flat, first))])
    dist.all_reduce(identical, dist.ReduceOp.MIN)
    if isinstance(log, PlainLog):
        outcome: dict[str, Any] = {"wire_bytes": log.wire_bytes, "reasons": [log.level]}
    else:
        summary = log.summary()
        outcome = {}
        outcome["wire_bytes"] = summary.wire_bytes // max(summary.steps, 1)
        outcome["reasons"] = list(dict.fromkeys(summary.reasons.values()))
    report(rank, done=True, identical=bool(identical), step_seconds=step_seconds, **outcome)


def report(rank: int, **facts: Any) -> None:
    if rank == 0:
        print(json.dumps(facts), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--level", default="", help="attach gradwire at this level; empty is plain DDP")
    parser.add_argument("--powersgd", type=int, default=0, help="torch's PowerSGD hook of this rank instead; 0: none")
    parser.add_argument("--data", default="", help="fashion-mnist or digits; default: fashion-mnist if installed")
    parser.add_argument("--data-dir", type=Path, default=None)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--samples", type=int, default=0, help="train on this many samples; default: all")
    parser.add_argument("--batch", type=int, default=32, help="per rank")
    parser.add_argument("--rate", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bucket-mb", type=float, default=1.0)
    parser.add_argument("--record", default="", help="record events into this directory")
    options = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group("gloo")
    try:
        train(options, load(options.data, options.data_dir))
    finally:
        dist.destroy_process_group()
        wait_for_backend_threads()


if __name__ == "__main__":
    main()
