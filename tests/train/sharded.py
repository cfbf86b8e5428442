"""Sharded jobs: what the ranks of the HSDP tests run, on a net sharded inside a site and replicated across sites."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard import _fsdp_collectives as collectives
from torch.nn import functional as F

import gradwire
from gradwire.decide.base import Job
from gradwire.errors import ConfigError
from gradwire.integrations.fsdp_unit import FsdpUnit
from gradwire.level import Level
from gradwire.runtime import open_governor
from gradwire.transport.lanes.open_lanes import group_of
from gradwire.types import Decision, StepFacts, View
from tests.train.instruments import recorded_settles, train_with_broken_encoder
from tests.train.jobs import batch, small_net, train_step
from tests.train.test_backwards import Checkpointed

SITES = 2


def mesh_of(world: int, sites: int = SITES) -> DeviceMesh:
    return init_device_mesh("cpu", (sites, world // sites), mesh_dim_names=("replicate", "shard"))


def wrap(net: nn.Module, mesh: DeviceMesh, **options: Any) -> nn.Module:
    """Each linear layer is a unit of its own, and so is what the root holds besides."""
    for layer in net:  # type: ignore[attr-defined]
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh, **options)
    fully_shard(net, mesh=mesh, **options)
    return net


def shards(net: nn.Module) -> Tensor:
    return torch.cat([parameter.to_local().detach().flatten() for parameter in net.parameters()])  # type: ignore[attr-defined]


def same_on_replicas(value: Tensor, mesh: DeviceMesh) -> bool:
    group = mesh.get_group("replicate")
    first = value.clone()
    dist.broadcast(first, dist.get_global_rank(group, 0), group=group)
    return torch.equal(value, first)


def train(rank: int, world: int, level: Any, how: str = "", steps: int = 6, sites: int = SITES) -> dict[str, Any]:
    """Train; returns this rank's shards, the losses, whether replicas agreed after every step, and the summary."""
    mesh = mesh_of(world, sites)
    options = {"mp_policy": MixedPrecisionPolicy(reduce_dtype=getattr(torch, how))} if "float" in how else {}
    net = wrap(small_net(), mesh, **options)
    PREPARE.get(how, lambda net: None)(net)
    handle = gradwire.attach_fsdp(net, level) if level else None
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    agreed, losses = True, []
    for step in range(steps):
        optimizer.zero_grad()
        for micro in range(2 if how in ACCUMULATE else 1):
            if how in ACCUMULATE:
                ACCUMULATE[how](net, micro == 1)
            inputs, labels = batch(rank, 10 * step + micro)
            loss = F.cross_entropy(net(inputs), labels)
            loss.backward()
        optimizer.step()
        agreed = agreed and same_on_replicas(shards(net), mesh)
        losses.append(loss.item())
    summary = handle.summary() if handle else None
    state = handle.state_dict() if handle else None
    if handle:
        handle.close()
    return {"weights": shards(net), "losses": losses, "agreed": agreed, "summary": summary, "state": state}


class RankController:
    """Every rank's chooses other levels than those of the other ranks, and notes what it is asked."""

    def __init__(self, rank: int) -> None:
        self.rank, self.jobs = rank, list[tuple[int, int]]()

    def decide(self, job: Job, view: View, facts: StepFacts, now: float) -> Decision:
        self.jobs.append((job.world_size, facts.wire_bytes))
        level = ("int8", "int4", "fp16", "int2")[(self.rank + len(self.jobs)) % 4]
        return Decision(Level.parse(level), f"rank {self.rank} chose it")


def train_with_own_controllers(
    rank: int, world: int, settings: dict[str, Any], steps: int = 10
) -> tuple[list[str], list[tuple[int, int]], bool]:
    """The level of every step on this rank, what its controller was asked, and whether replicas agreed."""
    controller = RankController(rank)
    make, open_governor.make_controller = open_governor.make_controller, lambda *arguments: controller
    try:
        mesh = mesh_of(world)
        net = wrap(small_net(), mesh)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        handle: Any = gradwire.attach(net, {"level": "auto", **settings}, optimizer=optimizer)
    finally:
        open_governor.make_controller = make
    levels, agreed = list[str](), True
    for step in range(steps):
        inputs, labels = batch(rank, step)
        optimizer.zero_grad()
        F.cross_entropy(net(inputs), labels).backward()
        optimizer.step()
        levels.append(str(handle._built.governor.decision.level))
        agreed = agreed and (bool(settings) or same_on_replicas(shards(net), mesh))
    handle.close()
    return levels, controller.jobs, agreed


def attach_with_a_level_for_each_shard(rank: int, world: int) -> str:
    net = wrap(small_net(), mesh_of(world))
    try:
        gradwire.attach_fsdp(net, ["auto", "int8"][rank % 2])
    except ConfigError as error:
        return str(error)
    return ""


def sum_over_some(rank: int, world: int) -> float:
    """Of the ranks behind the first, in a group of theirs."""
    if rank == 0:
        return 0.0
    group = group_of(range(1, world), 60.0)
    value = torch.tensor(float(rank))
    dist.all_reduce(value, group=group)
    return float(value)


def halve_gradients(net: Any) -> None:
    """Read and write gradients before backward ends, as an optimizer that steps within backward would."""
    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: p.grad.mul_(0.5))


# Ways of using FSDP2 that change what happens around the hook.
PREPARE: dict[str, Callable[[Any], None]] = {
    "hooks": halve_gradients,
    "sum": lambda net: [m.set_force_sum_reduction_for_comms(True) for m in net.modules() if hasattr(m, "unshard")],
    "divisor": lambda net: [m.set_gradient_divide_factor(2.0) for m in net.modules() if hasattr(m, "unshard")],
}
ACCUMULATE: dict[str, Callable[[Any, bool], None]] = {
    "no gradient sync": lambda net, last: net.set_requires_gradient_sync(last),
    "no all-reduce": lambda net, last: net.set_requires_all_reduce(last),
    "sync twice": lambda net, last: None,
}


class _CountingDist:
    """torch.distributed as FSDP2's collectives see it, counting all-reduces."""

    def __init__(self) -> None:
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        self.calls += name == "all_reduce"
        return getattr(dist, name)


def count_all_reduces(rank: int, world: int, level: str | None, how: str) -> tuple[int, set[bool]]:
    """How often FSDP2 all-reduced by itself, and whether units let backward continue."""
    views_only, counting = FsdpUnit.views_only, _CountingDist()
    answers = set()

    def recorded(self: FsdpUnit, buffer: Tensor) -> bool:
        answers.add(views_only(self, buffer))
        return views_only(self, buffer)

    collectives.dist, FsdpUnit.views_only = counting, recorded  # type: ignore[assignment, method-assign]
    try:
        train(rank, world, level, how, 2)
    finally:
        collectives.dist, FsdpUnit.views_only = dist, views_only  # type: ignore[method-assign]
    return counting.calls, answers


def settles(rank: int, world: int, level: str | None, reentrant: bool) -> tuple[int, list[int], Tensor]:
    """Three steps of a net whose blocks are recomputed in backward: the handle's step, the units in flight whenever the
    session settles, and the gradients."""
    net = Checkpointed(reentrant)
    for block in net.blocks:
        fully_shard(block, mesh=mesh_of(world))
    fully_shard(net, mesh=mesh_of(world))
    handle = gradwire.attach_fsdp(net, level) if level else None
    gradients = []
    with recorded_settles() as in_flight:
        for step in range(3):
            net.zero_grad()
            net(batch(rank, step)[0].requires_grad_()).pow(2).sum().backward()
            gradients.append(torch.cat([p.grad.to_local().flatten().clone() for p in net.parameters()]))  # type: ignore[union-attr]
    steps = handle.step if handle else 0
    if handle:
        handle.close()
    return steps, in_flight, torch.stack(gradients)


def resume(rank: int, world: int, level: str) -> tuple[Tensor, Tensor, str]:
    """Eight steps in one run, and four, a checkpoint, four; and the error for a state of another shard."""

    def run(first: int, last: int, state: dict[str, Any] | None) -> tuple[Tensor, dict[str, Any]]:
        net = wrap(small_net(), mesh_of(world))
        if state is not None:
            net.load_state_dict(state["net"])
        handle = gradwire.attach_fsdp(net, level)
        if state is not None:
            handle.load_state_dict(state["gradwire"])
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(first, last):
            train_step(net, optimizer, rank, step)
        saved = {"net": {k: v.clone() for k, v in net.state_dict().items()}, "gradwire": handle.state_dict()}
        handle.close()
        return shards(net), saved

    whole, _ = run(0, 8, None)
    _, half = run(0, 4, None)
    resumed, _ = run(4, 8, half)
    half["gradwire"]["shard"] = [7, 9]
    try:
        run(4, 8, half)
    except gradwire.ConfigError as error:
        return whole, resumed, str(error)
    return whole, resumed, "no error"


def load_another_shard(rank: int, world: int) -> str:
    """The last rank loads the state of a shard that it does not hold: the error on every rank."""
    handle = gradwire.attach_fsdp(wrap(small_net(), mesh_of(world)), {"level": "int8", "transport": {"timeout": 3}})
    state = handle.state_dict()
    if rank == world - 1:
        state["shard"] = [0, 2]
    try:
        handle.load_state_dict(state)
    except gradwire.GradwireError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        handle.close()
    return "loaded"


def load_states(rank: int, world: int, states: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Load the states of a job with another number of sites; returns this rank's residuals."""
    handle = gradwire.attach_fsdp(wrap(small_net(), mesh_of(world, sites=world)), "int8")
    handle.load_state_dict(states)
    handle.close()
    return handle.state_dict()["residuals"]  # type: ignore[no-any-return]


def fail_in_encoder(rank: int, world: int) -> str:
    """Rank 1's encoder breaks at step 2: which error reaches its training loop, and rank 0's?"""
    net = wrap(small_net(), mesh_of(world))
    handle = gradwire.attach_fsdp(net, {"level": "int8", "transport": {"timeout": 3}})
    return train_with_broken_encoder(net, handle, (batch(rank, step) for step in range(4)), 2 if rank == 1 else -1)


def mistakes(rank: int, world: int) -> list[str]:
    """The errors of `attach_fsdp` for models that it does not support."""
    twice = wrap(small_net(), mesh_of(world))
    handle = gradwire.attach_fsdp(twice, "off")
    assert gradwire.attach_fsdp(twice) is handle
    flat_mesh = fully_shard(small_net(), mesh=init_device_mesh("cpu", (world,)))
    answers = []
    planned = wrap(small_net(), mesh_of(world)), {"level": "int8", "plan": "star"}
    cases: list[tuple[nn.Module, Any]] = [(small_net(), "int8"), (flat_mesh, "int8"), (twice, "int8"), planned]
    for model, level in cases:
        try:
            gradwire.attach_fsdp(model, level)
        except gradwire.ConfigError as error:
            answers.append(str(error))
    handle.close()
    return answers


def automatic(rank: int, world: int) -> dict[str, Any]:
    """With plan = "auto", which is the default, and an adaptive level: what may carry the steps, and threads."""
    mesh = mesh_of(world, world)
    net = wrap(small_net(), mesh)
    handle = gradwire.attach_fsdp(net, {"level": "auto", "plan": "auto"})
    optimizer, agreed = torch.optim.SGD(net.parameters(), lr=0.1), True
    for step in range(12):
        inputs, labels = batch(rank, step)
        optimizer.zero_grad()
        F.cross_entropy(net(inputs), labels).backward()
        optimizer.step()
        agreed = agreed and same_on_replicas(shards(net), mesh)
    parts = handle._built.session._parts
    carried_by, threads = parts.compressed._context.transports, [one.name for one in threading.enumerate()]
    found = {"agreed": agreed, "opener": carried_by.opener, "kind": carried_by.current.kind}
    handle.close()
    return {**found, "trees": [name for name in threads if "tree" in name or "routes" in name]}


def unused(rank: int, world: int, zeroed: bool) -> str:
    """A layer without gradient in a step. A unit that is partly unused needs `zeroed`: unused parameters get zeros."""

    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.idle = nn.Linear(40, 5), nn.Linear(40, 5)

        def forward(self, inputs: Tensor) -> Tensor:
            return self.used(inputs)  # type: ignore[no-any-return]

    net = fully_shard(Half(), mesh=mesh_of(world))
    if zeroed:
        net.set_reduce_scatter_unused_params(True)
    handle = gradwire.attach_fsdp(net, "int8")
    inputs, labels = batch(rank, 0)
    try:
        F.cross_entropy(net(inputs), labels).backward()
    except gradwire.ConfigError as error:
        return str(error)
    finally:
        handle.close()
    return "trained"


def replicate_only(rank: int, world: int, level: str | None) -> Tensor:
    """torch's `replicate`, built on FSDP2: no shards at all."""
    from torch.distributed._composable.replicate_with_fsdp import replicate

    net = small_net()
    replicate(net, mesh=init_device_mesh("cpu", (world,)))
    handle = gradwire.attach_fsdp(net, level) if level else None
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(4):
        train_step(net, optimizer, rank, step)
    if handle:
        handle.close()
    return shards(net)


class Spike(nn.Module):
    """The identity; in backward, the first feature's gradient is infinite where `armed`."""

    armed = False

    def forward(self, inputs: Tensor) -> Tensor:
        out = inputs * 1.0
        if self.armed:
            out.register_hook(self._overflow)
        return out

    @staticmethod
    def _overflow(gradient: Tensor) -> Tensor:
        infinite = gradient.clone()
        infinite[:, 0] = torch.inf
        return infinite


def scaled(rank: int, world: int, level: Any, how: str, overflows: bool) -> tuple[Tensor, float]:
    """Six steps with a loss scaler that is found; with `overflows`, two more at which the first layer's first row
    overflows on rank 0: only the ranks that hold the first shard can see that. Weights and the last scale."""
    options = {"mp_policy": MixedPrecisionPolicy(reduce_dtype=getattr(torch, how))} if how else {}
    first, *rest = small_net()
    spike = Spike()
    net = wrap(nn.Sequential(first, spike, *rest), mesh_of(world), **options)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=100)
    handle = gradwire.attach_fsdp(net, level)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(6):
        for overflow in (True, False) if overflows and step in (2, 4) else (False,):
            inputs, labels = batch(rank, step)
            spike.armed = overflow and rank == 0
            optimizer.zero_grad()
            before = shards(net)
            scaler.scale(F.cross_entropy(net(inputs), labels)).backward()
            scaler.step(optimizer)
            scaler.update()
            assert torch.equal(before, shards(net)) == overflow
    handle.close()
    return shards(net), scaler.get_scale()
