"""What the ranks of the tests of local steps with FSDP2 run, and the reference in plain torch: FSDP2 inside a site."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

import gradwire
from tests.train.jobs import batch, small_net
from tests.train.local_jobs import MakeOptimizer, Normalised, config_errors, sgd
from tests.train.sharded import ACCUMULATE, mesh_of, shards, wrap

EVERY = 4


def same_on_replicas(value: Tensor, mesh: DeviceMesh) -> bool:
    """The same answer on all replicas of this rank."""
    group = mesh.get_group("replicate")
    first = value.detach().clone()
    dist.broadcast(first, dist.get_global_rank(group, 0), group=group)
    alike = torch.tensor([float(torch.equal(value, first))])
    dist.all_reduce(alike, dist.ReduceOp.MIN, group=group)
    return bool(alike)


def uneven_net() -> nn.Module:
    """The last layer has one row: all but one rank of a site have nothing of it."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(40, 33), nn.ReLU(), nn.Linear(33, 5), nn.Linear(5, 1))


def wrapped(make_net: Callable[[], nn.Module], mesh: DeviceMesh) -> nn.Module:
    """Layers are units of their own, except where they are tied."""
    net = make_net()
    return wrap(net, mesh) if isinstance(net, nn.Sequential) else fully_shard(net, mesh=mesh)


def step(net: nn.Module, optimizer: torch.optim.Optimizer, rank: int, number: int, how: str = "") -> None:
    optimizer.zero_grad()
    for micro in range(2 if how in ACCUMULATE else 1):
        if how in ACCUMULATE:
            ACCUMULATE[how](net, micro == 1)
        inputs, labels = batch(rank, 10 * number + micro)
        out = net(inputs)
        (F.cross_entropy(out, labels) if out.shape[1] > 1 else out.square().mean()).backward()
    optimizer.step()


def reference(rank: int, world: int, make_net: Any, make: MakeOptimizer, make_outer: Any, how: str) -> Tensor:
    """Local steps in plain torch: every site shards its own model over its own ranks, and at the end of a round the
    mean of the sites' shards is the outer optimizer's gradient."""
    mesh = mesh_of(world)
    net = wrapped(make_net, mesh["shard"])
    optimizer, replicas = make(net), mesh.get_group("replicate")
    own = [one.to_local().detach() for one in net.parameters()]  # type: ignore[attr-defined]
    shared = [one.clone().requires_grad_() for one in own]
    outer = make_outer(shared)
    for number in range(3 * EVERY):
        step(net, optimizer, rank, number, how)
        if (number + 1) % EVERY == 0:
            for one, local in zip(shared, own, strict=True):
                one.grad = (one.detach() - local) / replicas.size()
                dist.all_reduce(one.grad, group=replicas)
            outer.step()
            for one, local in zip(shared, own, strict=True):
                local.copy_(one.detach())
    return shards(net)


@contextlib.contextmanager
def session(
    world: int, config: Any, make: MakeOptimizer = sgd, make_net: Any = small_net, **settings: Any
) -> Iterator[tuple[Any, ...]]:
    mesh = mesh_of(world)
    net = wrapped(make_net, mesh)
    optimizer = make(net)
    handle = gradwire.attach(net, config, optimizer=optimizer, **{"sync_every": EVERY, **settings})
    yield net, optimizer, handle, mesh
    handle.close()


def train(
    rank: int,
    world: int,
    make_net: Any = small_net,
    make: MakeOptimizer = sgd,
    config: Any = "off",
    how: str = "",
    settings: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Three rounds; whether replicas agreed after every step."""
    agreed = []
    with session(world, config, make, make_net, **(settings or {})) as (net, optimizer, handle, mesh):
        for number in range(3 * EVERY):
            step(net, optimizer, rank, number, how)
            agreed.append(same_on_replicas(shards(net), mesh))
        handle.synchronise()
        ended = same_on_replicas(shards(net), mesh)
        summary = handle.summary()
        return {"weights": shards(net), "agreed": agreed, "ended": ended, "summary": summary, "step": handle.step}


def both(
    rank: int, world: int, make_net: Any, make: MakeOptimizer, outer: Any, make_outer: Any, how: str
) -> tuple[Any, Tensor]:
    ours = train(rank, world, make_net, make, "off", how, {"outer": outer})
    return ours, reference(rank, world, make_net, make, make_outer, how)


def resumed(rank: int, world: int, config: Any, at: int) -> tuple[Tensor, Tensor, int]:
    """Ten steps in one go, and with a checkpoint after `at` of them."""

    def adamw(net: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(net.parameters(), lr=0.01)

    with session(world, config, adamw) as (net, optimizer, handle, _):
        for number in range(10):
            if number == at:
                saved, inner = handle.state_dict(), optimizer.state_dict()
                inner = copy.deepcopy(inner)
            step(net, optimizer, rank, number)
        whole = shards(net)
    with session(world, config, adamw) as (net, optimizer, handle, _):
        handle.load_state_dict(saved)
        optimizer.load_state_dict(inner)
        for number in range(at, 10):
            step(net, optimizer, rank, number)
        return whole, shards(net), handle.step


def states_of(rank: int, world: int, steps: int) -> tuple[dict[str, Any], Tensor]:
    with session(world, "int8") as (net, optimizer, handle, _):
        for number in range(steps):
            step(net, optimizer, rank, number)
        return handle.state_dict(), shards(net)


def load_states(rank: int, world: int, states: list[dict[str, Any]]) -> tuple[Tensor, bool]:
    """A job with three sites of one rank loads the states of two sites of one rank."""
    mesh = mesh_of(world, sites=world)
    net = wrap(small_net(), mesh)
    optimizer = sgd(net)
    handle = gradwire.attach(net, "int8", optimizer=optimizer, sync_every=EVERY)
    handle.load_state_dict(states)
    loaded = shards(net)
    for number in range(EVERY - handle.step_in_round):  # type: ignore[attr-defined]
        step(net, optimizer, rank, number)
    agreed = same_on_replicas(shards(net), mesh)
    handle.close()
    return loaded, agreed


def flat_shards(parameters: Iterable[Any]) -> Tensor:
    return torch.cat([one.to_local().detach().flatten() for one in parameters])


def evaluated(rank: int, world: int) -> dict[str, bool]:
    """An evaluation leaves FSDP2's root unit gathered: the weights of one block must not be used in the other."""
    inputs = batch(0, 99)[0]
    with session(world, "int8", make_net=RootOnly) as (net, optimizer, handle, mesh):
        sharded = list(net.parameters())  # the module has the gathered ones after a forward pass
        for number in range(EVERY):
            step(net, optimizer, rank, number)
        with torch.no_grad():
            shared = net(inputs)
        step(net, optimizer, rank, EVERY)
        before = flat_shards(sharded)
        with torch.no_grad():
            own = net(inputs)
            with handle.global_weights():
                inside = net(inputs)
            after = net(inputs)
        restored = torch.equal(before, flat_shards(sharded))
        handle.synchronise()
        with torch.no_grad():
            ended = net(inputs)
        return {
            "inside": torch.equal(inside, shared),
            "differs": not torch.equal(own, shared),
            "after": torch.equal(after, own),
            "restored": restored,
            "synchronised": same_on_replicas(ended, mesh),
        }


class RootOnly(nn.Module):
    """One unit with all parameters: FSDP2 does not free a root's gathered weights after a forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = small_net()

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layers(inputs)  # type: ignore[no-any-return]


def detached(rank: int, world: int, make: MakeOptimizer) -> dict[str, Any]:
    """Detached in the middle of a round: nothing is left in residuals, and the rest is plain HSDP."""
    with session(world, "topk:0.1", make) as (net, optimizer, handle, mesh):
        for number in range(6):
            step(net, optimizer, rank, number)
        handle.detach()
        agreed = [same_on_replicas(shards(net), mesh)]
        left = handle.state_dict()["residuals"]
        for number in range(6, 10):
            step(net, optimizer, rank, number)
            agreed.append(same_on_replicas(shards(net), mesh))
        return {"agreed": agreed, "left": len(left)}


def scaled(rank: int, world: int) -> tuple[list[bool], int]:
    """The gradient overflows at the second site alone: it skips that step, the first does not, and both count it."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=100)
    agreed = []
    with session(world, "int8", scaler=scaler) as (net, optimizer, handle, mesh):
        for number in range(2 * EVERY):
            inputs, labels = batch(rank, number)
            optimizer.zero_grad()
            overflow = torch.inf if rank >= world // 2 and number in (1, 3) else 1.0
            scaler.scale(F.cross_entropy(net(inputs), labels) * overflow).backward()
            scaler.step(optimizer)
            scaler.update()
            agreed.append(same_on_replicas(shards(net), mesh))
        assert shards(net).isfinite().all()
        return agreed, handle.step


def compiled(rank: int, world: int) -> tuple[Tensor, Tensor]:
    """The same rounds with a compiled model, attached by the compiled object, and with the model itself."""
    plain = train(rank, world)["weights"]
    net = wrap(small_net(), mesh_of(world))
    whole = torch.compile(net, backend="eager")
    optimizer = sgd(net)
    handle = gradwire.attach(whole, "off", optimizer=optimizer, sync_every=EVERY)  # type: ignore[arg-type]
    for number in range(3 * EVERY):
        step(whole, optimizer, rank, number)  # type: ignore[arg-type]
    handle.close()
    return plain, shards(net)


def buffers(rank: int, world: int) -> tuple[bool, bool, bool]:
    """Running statistics: each rank's own in a round; at its end replicas of a shard have their mean."""
    with session(world, "off", make_net=Normalised) as (net, optimizer, handle, mesh):
        mean = net.layers[1].running_mean
        agreed = []
        for number in range(EVERY):
            step(net, optimizer, rank, number)
            agreed.append(same_on_replicas(mean, mesh))
        step(net, optimizer, rank, EVERY)
        with handle.global_weights():
            inside = same_on_replicas(mean, mesh)
        return any(agreed[:-1]), agreed[-1], inside


def mistakes(rank: int, world: int) -> list[str]:
    """Every call that must be refused, on all ranks alike."""
    net = wrap(small_net(), mesh_of(world))
    whole, part = sgd(net), torch.optim.SGD([next(net.parameters())], lr=0.1)
    flat_mesh = fully_shard(small_net(), mesh=init_device_mesh("cpu", (world,)))
    narrow = wrap(uneven_net(), mesh_of(world))
    calls: list[Callable[[], object]] = [
        lambda: gradwire.attach(flat_mesh, "off", optimizer=sgd(flat_mesh), sync_every=5),
        lambda: gradwire.attach(net, "off", sync_every=5),  # type: ignore[arg-type]
        lambda: gradwire.attach(net, "off", optimizer=part, sync_every=5),  # type: ignore[arg-type]
        lambda: gradwire.attach(net, "off", optimizer=whole, sync_every="auto"),  # type: ignore[arg-type]
        lambda: gradwire.attach(net, "off", optimizer=whole, sync_seconds=5),  # type: ignore[arg-type]
        lambda: gradwire.attach(net, "off", optimizer=whole, sync_every=5, plan="ring"),  # type: ignore[arg-type]
        lambda: gradwire.attach_fsdp(net, {"level": "off", "sync_every": 5}),
        lambda: gradwire.attach(narrow, "off", optimizer=sgd(narrow), sync_every=5, num_fragments=3),  # type: ignore[arg-type]
        lambda: gradwire.attach(net, "off", optimizer=whole, sync_every=5 + rank // 2),  # type: ignore[arg-type]
    ]
    errors = config_errors(calls)
    with torch.no_grad():
        for one in net.parameters():
            one.to_local().add_(rank // 2)  # type: ignore[attr-defined]
    return [*errors, *config_errors([lambda: gradwire.attach(net, "off", optimizer=whole, sync_every=5)])]  # type: ignore[arg-type]
