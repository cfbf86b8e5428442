"""What the ranks of the tests of `sync_every = "auto"` run: decisions by a script, and the reference in plain torch."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.decide.base import Job
from gradwire.level import Level
from gradwire.runtime import open_governor
from gradwire.types import Decision, StepFacts, View
from tests.train.jobs import flat, same_everywhere, small_net
from tests.train.local_jobs import MakeOptimizer, end_round, nesterov, sgd, train_step

Script = list[tuple[str, int]]


class ScriptedController:
    """Decides (level, sync_every) by the number of the decision; the last one for ever."""

    facts: list[StepFacts]

    def __init__(self, script: Script) -> None:
        self._script, self.facts = list(script), []

    def decide(self, job: Job, view: View, facts: StepFacts, now: float) -> Decision:
        self.facts.append(facts)
        level, every = self._script.pop(0) if len(self._script) > 1 else self._script[0]
        return Decision(Level.parse(level), "the test's script", sync_every=every)


def attach_scripted(script: Script, *args: Any, **settings: Any) -> tuple[Any, ScriptedController]:
    """The handle of a model whose decisions are the script's, and the controller."""
    controller = ScriptedController(script)
    shipped = open_governor._controller
    open_governor._controller = lambda config: controller
    try:
        # The cap makes the first level `off`, whatever the startup probe finds; a script is not capped.
        return gradwire.attach(*args, sync_every="auto", lossiest="off", **settings), controller
    finally:
        open_governor._controller = shipped


def scripted(
    rank: int, world: int, script: Script, make: MakeOptimizer = sgd, steps: int = 24, config: Any = "auto"
) -> dict[str, Any]:
    """Train with scripted decisions; the mode after every step, and whether replicas agreed."""
    net = small_net()
    model = DistributedDataParallel(net, bucket_cap_mb=0.02)
    optimizer = make(net)
    handle, controller = attach_scripted(script, model, config, optimizer=optimizer)
    modes, agreed = [], []
    for step in range(steps):
        train_step(model, optimizer, rank, step)
        modes.append(handle.sync_every)
        agreed.append(same_everywhere(flat(net)))
    summary = handle.summary()
    handle.close()
    return {"weights": flat(net), "modes": modes, "agreed": agreed, "facts": controller.facts, "summary": summary}


def reference(rank: int, world: int, modes: list[int], make: MakeOptimizer = sgd) -> Tensor:
    """The same in plain torch: `modes` is how many local steps a round had after each step; 1: synchronous."""
    net = small_net()
    optimizer, mode, in_round = make(net), 1, 0
    shared, outer = _begin(net)
    for step, after in enumerate(modes):
        if mode == 1:
            _synchronous_step(net, optimizer, rank, step, world)
        else:
            train_step(net, optimizer, rank, step)
            in_round += 1
            if in_round == mode:
                end_round(net, shared, outer, world)
                in_round = 0
        if after > 1 and mode == 1:
            shared, outer = _begin(net)
        if after == 1 and mode > 1:
            _average(optimizer, world)
        mode = after
    return flat(net)


def _begin(net: nn.Module) -> tuple[list[Tensor], torch.optim.Optimizer]:
    shared = [one.detach().clone().requires_grad_() for one in net.parameters()]
    return shared, nesterov(shared)


def _synchronous_step(net: nn.Module, optimizer: torch.optim.Optimizer, rank: int, step: int, world: int) -> None:
    class Averaged(torch.optim.Optimizer):
        """Lets `train_step` make a synchronous step."""

        def __init__(self) -> None:
            super().__init__(list(net.parameters()), {})

        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for one in net.parameters():
                assert one.grad is not None
                one.grad.mul_(1.0 / world)
                dist.all_reduce(one.grad)
            optimizer.step()

    train_step(net, Averaged(), rank, step)


def _average(optimizer: torch.optim.Optimizer, world: int) -> None:
    for state in optimizer.state.values():
        for value in state.values():
            if isinstance(value, Tensor):
                value.mul_(1.0 / world)
                dist.all_reduce(value)


def both(
    rank: int, world: int, script: Script, make: MakeOptimizer, config: Any = "auto"
) -> tuple[dict[str, Any], Tensor]:
    ours = scripted(rank, world, script, make, config=config)
    return ours, reference(rank, world, ours["modes"], make)


def conserved(rank: int, world: int, script: Script, steps: int) -> dict[str, Any]:
    """Gradients that do not depend on the weights: whatever waits in between, in the end their sum has been applied."""
    net = nn.Linear(64, 48, bias=False)
    nn.init.zeros_(net.weight)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    handle, _ = attach_scripted(script, model, "auto", optimizer=optimizer, outer="average")
    expected, modes = torch.zeros(48, 64), []
    for step in range(steps):
        optimizer.zero_grad()
        weight = torch.randn(48, 64, generator=torch.Generator().manual_seed(10 * step + rank))
        (model(torch.eye(64)).T * weight).sum().backward()
        total = weight / world
        dist.all_reduce(total)
        expected -= 0.5 * total
        optimizer.step()
        modes.append(handle.sync_every)
    result = {"weights": net.weight.detach().clone(), "expected": expected, "modes": modes}
    handle.close()
    return result


def resumed(rank: int, world: int, at: int) -> tuple[Tensor, Tensor, list[int]]:
    """Train 20 steps at once; and again, with all state saved and loaded after `at` steps."""
    script = [("off", 1), ("off", 1), ("off", 4)]
    whole = scripted(rank, world, script, steps=20)
    first = _Job(script)
    first.train(rank, range(at))
    states = copy.deepcopy(
        (first.net.state_dict(), first.optimizer.state_dict(), first.handle.state_dict(), first.handle.sync_every)
    )
    first.handle.close()
    second = _Job([("off", states[3])])
    second.net.load_state_dict(states[0])
    second.optimizer.load_state_dict(states[1])
    second.handle.load_state_dict(states[2])
    assert second.handle.sync_every == states[3]
    modes = second.train(rank, range(at, 20))
    second.handle.close()
    return whole["weights"], flat(second.net), modes


class _Job:
    def __init__(self, script: Script) -> None:
        self.net = small_net()
        self.model = DistributedDataParallel(self.net, bucket_cap_mb=0.02)
        self.optimizer = sgd(self.net)
        self.handle, _ = attach_scripted(script, self.model, "auto", optimizer=self.optimizer)

    def train(self, rank: int, steps: range) -> list[int]:
        modes = []
        for step in steps:
            train_step(self.model, self.optimizer, rank, step)
            modes.append(self.handle.sync_every)
        return modes


def unchosen(rank: int, world: int, level: str) -> tuple[Tensor, Tensor, int]:
    """`sync_every = "auto"` as gradwire decides on loopback, and plain DDP."""
    found = []
    for attach in (True, False):
        net = small_net()
        model = DistributedDataParallel(net, bucket_cap_mb=0.02)
        optimizer = sgd(net)
        handle: Any = gradwire.attach(model, level, optimizer=optimizer, sync_every="auto") if attach else None
        for step in range(30):
            train_step(model, optimizer, rank, step)
        if attach:
            every = handle.sync_every
            handle.close()
        found.append(flat(net))
    return found[0], found[1], every


def detached(rank: int, world: int, script: Script) -> list[bool]:
    """Detach while steps are local, or synchronous: replicas agree from then on."""
    job = _Job(script)
    job.train(rank, range(9))
    job.handle.detach()
    agreed = [same_everywhere(flat(job.net))]
    for step in range(9, 12):
        train_step(job.model, job.optimizer, rank, step)
        agreed.append(same_everywhere(flat(job.net)))
    job.handle.close()
    return agreed


def scaled(rank: int, world: int) -> tuple[list[int], list[bool]]:
    """A loss scaler through synchronous and local steps, with an overflow in each."""
    script = [("int8", 1), ("int8", 1), ("int8", 3), ("int8", 3), ("off", 1), ("int8", 1)]
    net = small_net()
    model = DistributedDataParallel(net, bucket_cap_mb=0.02)
    optimizer = sgd(net)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=4)
    handle, _ = attach_scripted(script, model, "auto", optimizer=optimizer, scaler=scaler)
    modes, agreed = [], []
    for step in range(24):
        optimizer.zero_grad()
        inputs = torch.randn(8, 40, generator=torch.Generator().manual_seed(100 * step + rank))
        loss = model(inputs).square().mean()
        overflow = step in (1, 6) and rank == 1
        scaler.scale(loss * (torch.inf if overflow else 1.0)).backward()  # type: ignore[no-untyped-call]
        scaler.step(optimizer)
        scaler.update()
        modes.append(handle.sync_every)
        agreed.append(same_everywhere(flat(net)))
    assert flat(net).isfinite().all()
    handle.close()
    return modes, agreed
