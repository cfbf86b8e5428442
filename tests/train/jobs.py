"""What the ranks of the training tests run. Every function is a whole small job and returns plain data."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import time
import weakref
from pathlib import Path
from signal import SIGKILL
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.demo.data import load
from gradwire.demo.train import ConvNet, accuracy
from gradwire.integrations.rejoin import rejoining
from tests.train.instruments import train_with_broken_encoder


def small_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(40, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 5))


def batch(rank: int, step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * rank + step)
    inputs = torch.randn(16, 40, generator=generator)
    return inputs, inputs[:, :5].argmax(1)


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, step: int) -> None:
    inputs, labels = batch(rank, step)
    optimizer.zero_grad()
    F.cross_entropy(model(inputs), labels).backward()
    optimizer.step()


def flat(net: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().float().flatten() for parameter in net.parameters()])


def same_everywhere(value: Tensor) -> bool:
    first = value.clone()
    dist.broadcast(first, 0)
    alike = torch.tensor([float(torch.equal(value, first))])
    dist.all_reduce(alike, dist.ReduceOp.MIN)
    return bool(alike)


def train_small(
    rank: int, world: int, level: Any, steps: int = 12, transport: str | None = None, **ddp: Any
) -> dict[str, Any]:
    """Train the small net; returns its final weights, whether replicas agreed after every step, and the summary."""
    net = small_net()
    model = DistributedDataParallel(net, bucket_cap_mb=0.02, **ddp)
    handle = gradwire.attach(model, level, transport=transport) if level else None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    agreed, losses = True, []
    for step in range(steps):
        inputs, labels = batch(rank, step)
        loss = F.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        agreed = agreed and same_everywhere(flat(net))
        losses.append(loss.item())
    summary = handle.summary() if handle else None
    if handle:
        handle.close()
    return {"weights": flat(net), "agreed": agreed, "losses": losses, "summary": summary}


def scaled(rank: int, world: int, level: Any, overflows: bool, given: bool, clip: bool) -> tuple[Tensor, float]:
    """Eight steps with a loss scaler; with `overflows`, three more at which rank 1's loss is infinite. The scaler is
    passed or found. Returns weights and the scale at the end."""
    net = small_net()
    model = DistributedDataParallel(net, bucket_cap_mb=0.02)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    handle = gradwire.attach(model, level, scaler=scaler if given else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(8):
        for overflow in (True, False) if overflows and step in (1, 4, 5) else (False,):
            inputs, labels = batch(rank, step)
            loss = F.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            before = flat(net)
            scaler.scale(loss * (torch.inf if overflow and rank == 1 else 1.0)).backward()
            if clip:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            assert torch.equal(before, flat(net)) == overflow
            assert same_everywhere(flat(net))
    handle.close()
    return flat(net), scaler.get_scale()


def accumulate(rank: int, world: int, level: str | None) -> Tensor:
    """Two micro-batches per step, only the second synchronises."""
    net = small_net()
    model = DistributedDataParallel(net, bucket_cap_mb=0.02)
    handle = gradwire.attach(model, level) if level else None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        for micro in range(2):
            inputs, labels = batch(rank, 10 * step + micro)
            with model.no_sync() if micro == 0 else contextlib.nullcontext():
                F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    if handle:
        handle.close()
    assert same_everywhere(flat(net))
    return flat(net)


class Branching(nn.Module):
    """Uses one of two branches, so that some parameters have no gradient at a step."""

    def __init__(self, width: int = 5) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.left, self.right = nn.Linear(40, width), nn.Linear(40, width)

    def forward(self, inputs: Tensor, use_left: bool) -> Tensor:
        return self.left(inputs) if use_left else self.right(inputs)  # type: ignore[no-any-return]


def unused_parameters(rank: int, world: int, level: str | None) -> Tensor:
    net = Branching()
    model = DistributedDataParallel(net, find_unused_parameters=True)
    handle = gradwire.attach(model, level) if level else None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        inputs, labels = batch(rank, step)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs, step % 2 == 0), labels).backward()
        optimizer.step()
    if handle:
        handle.close()
    assert same_everywhere(flat(net))
    return flat(net)


class Mixed(nn.Module):
    """A float32, a bfloat16 and a float16 layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Linear(40, 64)
        self.b = nn.Linear(64, 64).to(torch.bfloat16)
        self.c = nn.Linear(64, 5).to(torch.float16)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = F.relu(self.b(F.relu(self.a(inputs)).to(torch.bfloat16)))
        return self.c(hidden.to(torch.float16)).float()  # type: ignore[no-any-return]


def mixed_dtypes(rank: int, world: int, level: str | None) -> Tensor:
    net = Mixed()
    model = DistributedDataParallel(net)
    handle = gradwire.attach(model, level) if level else None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(4):
        train_step(model, optimizer, rank, step)
    if handle:
        handle.close()
    assert same_everywhere(flat(net))
    return flat(net)


def train_with_own_residuals(rank: int, world: int, config: dict[str, Any]) -> dict[str, Any]:
    """Rank 0 keeps its residuals as float32, the others as bfloat16."""
    return train_small(rank, world, {**config, "compress": {"residual_type": "bfloat16" if rank else "float32"}})


def resume(rank: int, world: int, level: Any) -> tuple[Tensor, Tensor]:
    """Ten steps in one go, and five, a checkpoint, five: both results."""

    def run(first: int, last: int, state: dict[str, Any] | None) -> tuple[Tensor, dict[str, Any]]:
        net = small_net()
        if state is not None:
            net.load_state_dict(state["net"])
        model = DistributedDataParallel(net, bucket_cap_mb=0.02)
        handle = gradwire.attach(model, level)
        if state is not None:
            handle.load_state_dict(state["gradwire"])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(first, last):
            train_step(model, optimizer, rank, step)
        saved = {"net": {k: v.clone() for k, v in net.state_dict().items()}, "gradwire": handle.state_dict()}
        handle.close()
        return flat(net), saved

    whole, _ = run(0, 10, None)
    _, half = run(0, 5, None)
    resumed, _ = run(5, 10, half)
    return whole, resumed


def fail_in_encoder(rank: int, world: int) -> str:
    """Rank 1's encoder breaks at step 3: which error reaches its training loop, and rank 0's?"""
    model = DistributedDataParallel(small_net(), bucket_cap_mb=0.02)
    handle = gradwire.attach(model, {"level": "int8", "transport": {"timeout": 3}})
    return train_with_broken_encoder(model, handle, (batch(rank, step) for step in range(6)), 3 if rank == 1 else -1)


def detach_half_way(rank: int, world: int) -> tuple[bool, dict[str, int]]:
    """int8 for four steps, then detached: the residuals are sent, and the rest is plain DDP."""
    net = small_net()
    model = DistributedDataParallel(net, bucket_cap_mb=0.02)
    handle = gradwire.attach(model, "int8")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(8):
        if step == 4:
            handle.detach()
        train_step(model, optimizer, rank, step)
    levels = handle.summary().levels
    state = handle.state_dict()
    handle.close()
    assert not state["residuals"], "no residual may be left after the first plain step"
    return same_everywhere(flat(net)), levels


def digits(rank: int, world: int, level: Any, epochs: int = 10) -> float:
    """Accuracy of the demo's CNN on the shipped digits."""
    data = load("digits")
    torch.manual_seed(1)
    net = ConvNet(8)
    model = DistributedDataParallel(net, bucket_cap_mb=0.2)
    handle = gradwire.attach(model, level)
    steps = len(data.train_images) // (world * 25)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=epochs * steps)
    generator = torch.Generator().manual_seed(0)
    for _ in range(epochs):
        order = torch.randperm(len(data.train_images), generator=generator)[: steps * world * 25]
        for indices in order.view(steps, world, 25)[:, rank]:
            loss = F.cross_entropy(model(data.train_images[indices]), data.train_labels[indices])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    handle.close()
    assert same_everywhere(flat(net))
    return accuracy(net, data.test_images, data.test_labels)


# Steps that a job makes together with a rank that rejoined: enough for the others to read that it did.
MORE = 40


def elastic(rank: int, config: dict[str, Any], steps: int, folder: str, dies: bool) -> None:
    """A rank of an elastic job with an existing group: trains until the job has made `steps`, or dies at step 8.

    A restarted rank ends the job soon after it rejoined: it writes the job's last step to the file `last`.
    """
    torch.set_num_threads(1)
    last, rejoined = Path(folder) / "last", rejoining()
    model = DistributedDataParallel(small_net(), broadcast_buffers=False)
    handle = gradwire.attach(model, config)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    handle.hand_over(optimizer)
    made = 0
    while handle.step < (int(last.read_text()) if last.exists() else steps):
        if dies and handle.step == 8:
            os.kill(os.getpid(), SIGKILL)
        train_step(model, optimizer, rank, handle.step)
        made += 1
        if rejoined and handle.step and not last.exists():
            draft = last.with_suffix(".draft")
            draft.write_text(str(handle.step + MORE))
            draft.rename(last)
        time.sleep(0.06)
    torch.save({"weights": flat(model.module), "made": made}, Path(folder) / f"{rank}.pt")
    handle.close()


def join_uneven(rank: int, world: int, level: Any) -> tuple[bool, list[int]]:
    """Ranks with different numbers of batches under `model.join()`, twice; whether replicas agree, and the elements of
    the residuals by parameter."""
    model = DistributedDataParallel(small_net(), bucket_cap_mb=0.02)
    handle = gradwire.attach(model, level)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        with model.join():
            for step in range(3 + 2 * rank):
                train_step(model, optimizer, rank, 10 * epoch + step)
    left = [value.numel() for value in handle.state_dict()["residuals"].values()]
    return same_everywhere(flat(model)), left


def join_with_scaler(rank: int, world: int, level: str) -> list[bool]:
    """Like `join_uneven`, with a loss scaler: whether residuals are set aside when this rank's batches of each of two
    rounds have ended, and when the round has."""
    model = DistributedDataParallel(small_net(), bucket_cap_mb=0.02)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    handle = gradwire.attach(model, level, scaler=scaler)
    feedback, found = handle._built.feedback, []
    for _ in range(2):
        with model.join():
            for step in range(2 + 2 * rank):
                inputs, labels = batch(rank, step)
                model.zero_grad()
                scaler.scale(F.cross_entropy(model(inputs), labels)).backward()
            found.append(feedback.aside)
        found.append(feedback.aside)
    return found


def attach_and_delete(rank: int, world: int, level: Any) -> tuple[int, list[str]]:
    """Attach to several models in turn; how many of their networks and which threads are left after deletion."""
    nets, before = [], set(threading.enumerate())
    for _ in range(3):
        net = small_net()
        nets.append(weakref.ref(net))
        model = DistributedDataParallel(net)
        gradwire.attach(model, level)
        model(batch(rank, 0)[0]).sum().backward()
        dist.barrier()
        del net, model
    gc.collect()
    fresh = set(threading.enumerate()) - before
    return sum(net() is not None for net in nets), [thread.name for thread in fresh if "gradwire" in thread.name]


def resume_without_compression(rank: int, world: int) -> tuple[float, float]:
    """A state with residuals of 1 is loaded by a job that does not compress; what its first step adds to the gradient,
    and the residuals that are left then."""
    saved = gradwire.attach(DistributedDataParallel(small_net()), "topk:0.01")
    model = DistributedDataParallel(small_net())
    names = [name for name, _ in model.module.named_parameters()]
    residuals = {name: torch.ones(parameter.numel()) for name, parameter in model.module.named_parameters()}
    handle = gradwire.attach(model, "off")
    handle.load_state_dict({**saved.state_dict(), "residuals": residuals})
    (0.0 * model(batch(rank, 0)[0]).sum()).backward()
    left = handle.state_dict()["residuals"]
    gradient = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    assert set(names) == set(residuals)
    return float(gradient.mean()), sum(float(value.abs().sum()) for value in left.values())


def train_after_closing(rank: int, world: int) -> bool:
    """Steps after `close` are plain DDP's, also where replicas were compared."""
    model = DistributedDataParallel(small_net())
    handle = gradwire.attach(model, {"level": "int8", "observe": {"verify": 2}})
    for step in range(6):
        if step == 3:
            handle.close()
        model(batch(rank, step)[0]).sum().backward()
    return same_everywhere(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))


def attach_with(rank: int, world: int, settings: list[Any]) -> str:
    """Every rank attaches with its own settings; the error that this raises."""
    try:
        gradwire.attach(DistributedDataParallel(small_net()), settings[rank])
    except gradwire.ConfigError as error:
        return str(error)
    return ""


def attach_twice(rank: int, world: int) -> tuple[bool, str]:
    model = DistributedDataParallel(small_net())
    handle = gradwire.attach(model, "int8")
    try:
        gradwire.attach(model, record="elsewhere")
    except gradwire.ConfigError as error:
        return gradwire.attach(model) is handle, str(error)
    return False, ""


class TwoLayers(nn.Module):
    """Layers of equal size: DDP changes the bucket layout after the first step to the order in which gradients were
    ready, with as many elements as before."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(40, 40, bias=False), nn.Linear(40, 40, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(self.first(inputs))  # type: ignore[no-any-return]


def pruned_shares(rank: int, world: int) -> list[float]:
    """The share of weights that are zero after each step."""
    net = TwoLayers()
    model = DistributedDataParallel(net)
    gradwire.attach(model, {"level": "prune:0.5+int8", "compress": {"prune": "zero"}})
    shares = []
    for step in range(4):
        model(batch(rank, step)[0]).sum().backward()
        shares.append(float((flat(net) == 0).float().mean()))
    return shares


class Words(nn.Module):
    """Two embeddings with sparse gradients around a dense layer; without it, nothing but sparse gradients."""

    def __init__(self, dense: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Embedding(30, 8, sparse=True), nn.Embedding(7, 8, sparse=True)
        self.last = nn.Linear(8, 300) if dense else nn.Identity()

    def forward(self, words: Tensor) -> Tensor:
        return self.last(self.first(words).sum(1) + self.second(words % 7).sum(1))  # type: ignore[no-any-return]


def sparse_gradients(rank: int, world: int, config: Any, dense: bool = True, steps: int = 5) -> dict[str, Any]:
    """Gradients of every step, with words that occur several times; `config` None is plain DDP."""
    model = DistributedDataParallel(Words(dense), bucket_cap_mb=0.001)
    handle = gradwire.attach(model, config) if config else None
    gradients = []
    for step in range(steps):
        words = torch.randint(0, 30, (6, 5), generator=torch.Generator().manual_seed(100 * rank + step))
        model.zero_grad()
        model(words).pow(2).sum().backward()
        gradients.append({name: p.grad.to_dense().clone() for name, p in model.module.named_parameters()})
        kinds = {name: p.grad.layout for name, p in model.module.named_parameters()}
        assert kinds["first.weight"] == kinds["second.weight"] == torch.sparse_coo
        assert all(same_everywhere(gradient) for gradient in gradients[-1].values())
    summary, made = (handle.summary(), handle.step) if handle else (None, steps)
    if handle:
        handle.close()
    return {"gradients": gradients, "summary": summary, "step": made}


def unused_after_one_step(rank: int, world: int, level: str, between: str, views: bool) -> tuple[float, float]:
    """Both branches are used in one step, and only the left one in the next ones. By how much the applied gradient and
    the residual of the right branch differ from its true gradient: after the first step and at the end, relative to the
    true gradient."""
    net = Branching(64)
    model = DistributedDataParallel(net, find_unused_parameters=True, gradient_as_bucket_view=views)
    handle = gradwire.attach(model, level)
    given = applied = torch.zeros(sum(parameter.numel() for parameter in net.right.parameters()))

    def missing() -> float:
        state = handle.state_dict()["residuals"]
        left = torch.cat([state.get(f"right.{name}", torch.zeros_like(p).flatten()) for name, p in parts])
        dist.all_reduce(left)
        return float((given - applied - left).norm() / given.norm())

    parts = list(net.right.named_parameters())
    result: list[float] = []
    for step in range(6):
        inputs, _ = batch(rank, step)
        (net.left if between == "kept" else model).zero_grad(set_to_none=between == "none")
        if step:
            model(inputs, True).square().mean().backward()
        else:
            local = torch.autograd.grad(net.right(inputs).square().mean(), list(net.right.parameters()))
            given = torch.cat([gradient.flatten() for gradient in local])
            dist.all_reduce(given)
            model(inputs, False).square().mean().backward()
        if all(parameter.grad is not None for _, parameter in parts):
            now = world * torch.cat([p.grad.flatten() for _, p in parts])  # type: ignore[union-attr]
            applied = now if between == "kept" else applied + now
        result.append(missing())
    handle.close()
    return result[0], result[-1]


def two_optimizers(rank: int, world: int, level: str | None) -> tuple[list[Tensor], list[str]]:
    """Two optimizers in turn, each of which clears only the gradients of its own branch: all gradients of every step,
    and the names of the parameters that have a residual. `level` None is plain DDP."""
    net = Branching(64)
    model = DistributedDataParallel(net, find_unused_parameters=True)
    handle = gradwire.attach(model, level) if level else None
    gradients = []
    for step in range(7):
        inputs, _ = batch(rank, step)
        use_left = step % 2 == 1
        (net.left if use_left else net.right).zero_grad()
        model(inputs, use_left).square().mean().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None]))
    left = list(handle.state_dict()["residuals"]) if handle else []
    if handle:
        handle.close()
    return gradients, left
