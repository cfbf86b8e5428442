"""What the ranks of the tests of local steps run, and the reference in plain torch."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import gradwire
from tests.train.jobs import batch, flat, same_everywhere, small_net

MakeOptimizer = Callable[[nn.Module], torch.optim.Optimizer]


def sgd(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


def adamw_in_groups(net: nn.Module) -> torch.optim.Optimizer:
    """Weights and biases in groups of their own."""
    named = list(net.named_parameters())
    weights = [one for name, one in named if name.endswith("weight")]
    biases = [one for name, one in named if not name.endswith("weight")]
    return torch.optim.AdamW([{"params": weights}, {"params": biases, "lr": 0.02, "weight_decay": 0.0}], lr=0.01)


class Tied(nn.Module):
    """The first and the last layer have one weight."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.middle, self.last = nn.Linear(40, 40), nn.Linear(40, 40), nn.Linear(40, 40)
        self.last.weight = self.first.weight

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(F.relu(self.middle(F.relu(self.first(inputs)))))[:, :5]  # type: ignore[no-any-return]


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, step: int) -> None:
    inputs, labels = batch(rank, step)
    optimizer.zero_grad()
    F.cross_entropy(model(inputs), labels).backward()
    optimizer.step()


def average(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1.0)


def nesterov(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.7, momentum=0.6, nesterov=True)


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01)


def config_errors(calls: Iterable[Callable[[], object]]) -> list[str]:
    """The text of each call's ConfigError; empty where there is none."""
    errors = []
    for call in calls:
        try:
            call()
            errors.append("")
        except gradwire.ConfigError as error:
            errors.append(str(error))
    return errors


def end_round(net: nn.Module, shared: list[Tensor], outer: torch.optim.Optimizer, world: int) -> None:
    """The outer step in plain torch: `shared` are the global weights."""
    for one, own in zip(shared, net.parameters(), strict=True):
        one.grad = (one.detach() - own.detach()) * (1.0 / world)
        dist.all_reduce(one.grad)
    outer.step()
    for one, own in zip(shared, net.parameters(), strict=True):
        own.detach().copy_(one.detach())


def reference(
    rank: int, world: int, make_net: Any, make: MakeOptimizer, make_outer: Any, steps: int, every: int
) -> Tensor:
    """Local steps in plain torch: the global weights at the end."""
    net = make_net()
    optimizer, shared = make(net), [one.detach().clone().requires_grad_() for one in net.parameters()]
    outer = make_outer(shared)
    for step in range(steps):
        train_step(net, optimizer, rank, step)
        if (step + 1) % every == 0:
            end_round(net, shared, outer, world)
    return flat(net)


def train_local(
    rank: int,
    world: int,
    make_net: Any = small_net,
    make: MakeOptimizer = sgd,
    config: Any = "off",
    steps: int = 12,
    **settings: Any,
) -> dict[str, Any]:
    """Train with local steps; whether replicas agreed after every step, the weights and the summary at the end."""
    net = make_net()
    model = DistributedDataParallel(net, bucket_cap_mb=0.02)
    optimizer = make(net)
    handle = gradwire.attach(model, config, optimizer=optimizer, **{"sync_every": 4, **settings})
    agreed = []
    for step in range(steps):
        train_step(model, optimizer, rank, step)
        agreed.append(same_everywhere(flat(net)))
    result = {"weights": flat(net), "agreed": agreed, "summary": handle.summary(), "step": handle.step}
    handle.close()
    return result


def both(
    rank: int, world: int, make_net: Any, make: MakeOptimizer, outer: Any, make_outer: Any, config: Any = "off"
) -> tuple[Any, Any]:
    ours = train_local(rank, world, make_net, make, config, outer=outer)
    return ours, reference(rank, world, make_net, make, make_outer, 12, 4)


def compiled(rank: int, world: int) -> tuple[Tensor, Tensor]:
    """A compiled model inside DDP, and a compiled DDP model: attached by the compiled object."""
    found = []
    for inside in (True, False):
        net = small_net()
        model = DistributedDataParallel(torch.compile(net, backend="eager") if inside else net)
        whole = model if inside else torch.compile(model, backend="eager")
        optimizer = sgd(net)
        handle = gradwire.attach(whole, "off", optimizer=optimizer, sync_every=4)  # type: ignore[arg-type]
        for step in range(8):
            train_step(whole, optimizer, rank, step)
        found.append(flat(net))
        handle.close()
    return found[0], found[1]


def accumulated(rank: int, world: int, use_no_sync: bool) -> tuple[Tensor, int]:
    """Two micro-batches per step, in which only the optimizer's steps count."""
    net = small_net()
    model = DistributedDataParallel(net, bucket_cap_mb=0.02)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    handle = gradwire.attach(model, "off", optimizer=optimizer, sync_every=2)
    for step in range(4):
        optimizer.zero_grad()
        for micro in range(2):
            inputs, labels = batch(rank, 10 * step + micro)
            with model.no_sync() if micro == 0 and use_no_sync else contextlib.nullcontext():
                F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        assert same_everywhere(flat(net)) == (step % 2 == 1)
    rounds = handle.summary().steps
    handle.close()
    return flat(net), rounds


def scaled(rank: int, world: int, given: bool) -> tuple[list[bool], int]:
    """Nine iterations with a loss scaler; rank 1 overflows at some of them, also at the last one of a round."""
    net = small_net()
    model = DistributedDataParallel(net, bucket_cap_mb=0.02)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    optimizer = sgd(net)
    handle = gradwire.attach(model, "int8", optimizer=optimizer, sync_every=3, scaler=scaler if given else None)
    agreed = []
    for step in range(9):
        inputs, labels = batch(rank, step)
        optimizer.zero_grad()
        overflow = torch.inf if rank == 1 and step in (1, 5, 6) else 1.0
        scaler.scale(F.cross_entropy(model(inputs), labels) * overflow).backward()
        scaler.step(optimizer)
        scaler.update()
        agreed.append(same_everywhere(flat(net)))
    assert flat(net).isfinite().all()
    step = handle.step
    handle.close()
    assert "step" not in vars(scaler), "the wrapper is removed"
    return agreed, step


def scheduled(rank: int, world: int) -> tuple[Tensor, Tensor]:
    """With a learning-rate schedule: gradwire's weights, and those of the same loop in plain torch."""

    def loop(local: bool) -> Tensor:
        net = small_net()
        optimizer = sgd(net)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8)
        if local:
            model: nn.Module = DistributedDataParallel(net)
            handle = gradwire.attach(model, "off", optimizer=optimizer, sync_every=4, outer="average")  # type: ignore[arg-type]
        else:
            model = net
        for step in range(8):
            train_step(model, optimizer, rank, step)
            schedule.step()
            if not local and step % 4 == 3:
                for one in net.parameters():
                    dist.all_reduce(one.detach().mul_(1.0 / world))
        if local:
            handle.close()
        return flat(net)

    return loop(True), loop(False)


class Normalised(nn.Module):
    """With BatchNorm and a buffer that no rank changes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(40, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 5))
        self.register_buffer("table", torch.arange(3))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layers(inputs)  # type: ignore[no-any-return]


def buffers(rank: int, world: int, config: Any = "off") -> dict[str, Any]:
    """Running statistics: each rank's own in a round, their mean at its end; as DDP does after `detach`."""
    net = Normalised()
    model = DistributedDataParallel(net)
    optimizer = sgd(net)
    handle = gradwire.attach(model, config, optimizer=optimizer, sync_every=2)
    norm = net.layers[1]
    assert isinstance(norm, nn.BatchNorm1d)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert norm.num_batches_tracked is not None
    train_step(model, optimizer, rank, 0)
    own_differ = not same_everywhere(norm.running_mean)
    before: list[Tensor] = [torch.empty_like(norm.running_mean) for _ in range(world)]
    # The statistics after the second step's forward pass, before the end of the round.
    inputs, labels = batch(rank, 1)
    optimizer.zero_grad()
    F.cross_entropy(model(inputs), labels).backward()
    dist.all_gather(before, norm.running_mean)
    optimizer.step()
    averaged = torch.allclose(norm.running_mean, torch.stack(before).mean(0), atol=1e-6)
    agreed = same_everywhere(norm.running_mean) and same_everywhere(norm.running_var)
    train_step(model, optimizer, rank, 2)
    mid = norm.running_mean.clone()
    with handle.global_weights():
        shared = same_everywhere(flat(net)) and same_everywhere(norm.running_mean)
    restored = torch.equal(mid, norm.running_mean)
    handle.detach()
    result = {
        "own_differ": own_differ,
        "averaged": averaged,
        "agreed": agreed,
        "shared": shared,
        "restored": restored,
        "batches": int(norm.num_batches_tracked),
        "broadcast": bool(model.broadcast_buffers),
    }
    handle.close()
    return result


@contextlib.contextmanager
def session(rank: int, config: Any, every: int, make: MakeOptimizer) -> Iterator[tuple[Any, ...]]:
    net = small_net()
    model = DistributedDataParallel(net, bucket_cap_mb=0.02)
    optimizer = make(net)
    handle = gradwire.attach(model, config, optimizer=optimizer, sync_every=every)
    yield net, model, optimizer, handle
    handle.close()


def resumed(rank: int, world: int, config: Any, at: int) -> tuple[Tensor, Tensor, int]:
    """Ten steps in one go, and with a checkpoint after `at` of them, in rounds of four."""
    with session(rank, config, 4, adamw_in_groups) as (net, model, optimizer, handle):
        for step in range(10):
            if step == at:
                saved = {"gradwire": handle.state_dict(), "optimizer": optimizer.state_dict()}
                saved = torch.load(_through_bytes(saved), weights_only=True)
            train_step(model, optimizer, rank, step)
        whole = flat(net)
    with session(rank, config, 4, adamw_in_groups) as (net, model, optimizer, handle):
        handle.load_state_dict(saved["gradwire"])
        optimizer.load_state_dict(saved["optimizer"])
        for step in range(at, 10):
            train_step(model, optimizer, rank, step)
        return whole, flat(net), handle.step


def _through_bytes(state: Any) -> Any:
    import io

    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return file


def states_of(rank: int, world: int, steps: int) -> tuple[dict[str, Any], Tensor]:
    """A state after some steps, and this rank's weights."""
    with session(rank, "int8", 4, sgd) as (net, model, optimizer, handle):
        for step in range(steps):
            train_step(model, optimizer, rank, step)
        return handle.state_dict(), flat(net)


def load_states(rank: int, world: int, states: list[dict[str, Any]]) -> tuple[Tensor, int, bool]:
    """A job of another size: its weights after loading, and whether it trains on to an equal end of a round."""
    with session(rank, "int8", 4, sgd) as (net, model, optimizer, handle):
        handle.load_state_dict(states)
        loaded, in_round = flat(net), handle.step_in_round
        for step in range(4 - in_round):
            train_step(model, optimizer, rank, step)
        return loaded, in_round, same_everywhere(flat(net))


def detached(rank: int, world: int, make: MakeOptimizer, scale: bool) -> dict[str, Any]:
    """Detached in the middle of a round: the round ends, nothing is left in residuals, the rest is plain DDP."""
    with session(rank, "topk:0.1", 4, make) as (net, model, optimizer, handle):
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3, enabled=scale)

        def train(step: int) -> None:
            inputs, labels = batch(rank, step)
            optimizer.zero_grad()
            overflow = torch.inf if scale and rank == 1 and step == 2 else 1.0
            scaler.scale(F.cross_entropy(model(inputs), labels) * overflow).backward()
            scaler.step(optimizer)
            scaler.update()

        for step in range(6):
            train(step)
        handle.detach()
        agreed = [same_everywhere(flat(net))]
        left = handle.state_dict()["residuals"]
        for step in range(6, 11):
            train(step)
            agreed.append(same_everywhere(flat(net)))
        return {"agreed": agreed, "left": len(left)}


def early_ends(rank: int, world: int) -> dict[str, Any]:
    """`synchronise` in the middle of a round; `global_weights` in the middle of the next one."""
    with session(rank, "int8", 4, sgd) as (net, model, optimizer, handle):
        train_step(model, optimizer, rank, 0)
        handle.synchronise()
        agreed, rounds = same_everywhere(flat(net)), handle.summary().steps
        handle.synchronise()
        again = handle.summary().steps
        shared = flat(net)
        train_step(model, optimizer, rank, 1)
        own = flat(net)
        with handle.global_weights():
            inside = flat(net)
            try:
                train_step(model, optimizer, rank, 2)
                error = ""
            except gradwire.ConfigError as refused:
                error = str(refused)
        return {
            "agreed": agreed,
            "rounds": (rounds, again),
            "inside": torch.equal(inside, shared),
            "after": torch.equal(flat(net), own) and not torch.equal(own, shared),
            "error": error,
        }


def never_reaches_the_boundary(rank: int, world: int, level: str) -> str:
    """Rank 1 makes one step less."""
    config = {"level": level, "transport": {"timeout": 2}}
    net = small_net()
    model = DistributedDataParallel(net)
    optimizer = sgd(net)
    handle = gradwire.attach(model, config, optimizer=optimizer, sync_every=3)
    error = ""
    try:
        for step in range(2 if rank == 1 else 3):
            train_step(model, optimizer, rank, step)
    except gradwire.LinkError as failure:
        error = str(failure)
    store = dist.distributed_c10d._get_default_store()
    store.set(f"ended{rank}", "")
    store.wait([f"ended{one}" for one in range(world)])
    with contextlib.suppress(gradwire.LinkError):
        handle.close()
    return error


def plain_ddp(rank: int, world: int, with_optimizer: bool) -> Tensor:
    """Synchronous training at `off`, where `attach` is also given the optimizer."""
    net = small_net()
    model = DistributedDataParallel(net, bucket_cap_mb=0.02)
    optimizer = sgd(net)
    handle = gradwire.attach(model, "off", optimizer=optimizer if with_optimizer else None)
    for step in range(5):
        train_step(model, optimizer, rank, step)
    handle.close()
    return flat(net)


def by_variable(rank: int, world: int) -> dict[str, Any]:
    """As `gradwire.run` attaches: the model first, the optimizer found at its first step."""
    from gradwire.config import resolve
    from gradwire.integrations.ddp import attach_configured
    from gradwire.integrations.local_attach import LocalOptimizers

    net = small_net()
    model = DistributedDataParallel(net)
    config = resolve(None, {"GRADWIRE_SYNC_EVERY": "3", "GRADWIRE_LEVEL": "int8"})
    handle = attach_configured(model, config, LocalOptimizers(None, None))
    optimizer, other = sgd(net), torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    agreed = []
    for step in range(6):
        other.step()
        train_step(model, optimizer, rank, step)
        agreed.append(same_everywhere(flat(net)))
    known = gradwire.attach(model, optimizer=optimizer)
    rounds = handle.summary().steps
    handle.close()
    return {"agreed": agreed, "same": known is handle, "rounds": rounds}


def in_two_sites(rank: int, world: int, config: Any) -> tuple[Any, Any]:
    """The lower half of the ranks at one site, the upper half at another; and the reference."""
    os.environ["GRADWIRE_SITE"] = "ab"[2 * rank // world]
    try:
        return both(rank, world, small_net, sgd, None, nesterov, config)
    finally:
        del os.environ["GRADWIRE_SITE"]


def detached_at_the_end_of_a_round(rank: int, world: int, config: Any) -> tuple[bool, bool, list[bool]]:
    """Whether `detach` left the weights as they were, whether ranks agree, and after each of three more steps."""
    with session(rank, config, 4, sgd) as (net, model, optimizer, handle):
        for step in range(8):
            train_step(model, optimizer, rank, step)
        before = flat(net)
        handle.detach()
        after, agreed = flat(net), []
        for step in range(8, 11):
            train_step(model, optimizer, rank, step)
            agreed.append(same_everywhere(flat(net)))
        return torch.equal(before, after), same_everywhere(after), agreed


def plan_errors(rank: int, world: int, elastic: bool) -> list[str]:
    """What `hand_over` and `detach` say."""
    model = DistributedDataParallel(small_net(), broadcast_buffers=False)
    optimizer = sgd(model)
    config = {"level": "off", "plan": "star", "transport": {"kind": "tcp"}, "planning": {"elastic": elastic}}
    handle = gradwire.attach(model, config, optimizer=optimizer, sync_every=2)
    errors = config_errors([lambda: handle.hand_over(optimizer), handle.detach])
    handle.close()
    return errors


def wrong_calls(rank: int, world: int) -> list[str]:
    """Every call that must be refused, on all ranks alike."""
    net = small_net()
    model = DistributedDataParallel(net)
    unused = DistributedDataParallel(small_net(), find_unused_parameters=True)
    whole, part = sgd(net), torch.optim.SGD([next(net.parameters())], lr=0.1)
    others = torch.optim.SGD([*net.parameters(), nn.Parameter(torch.zeros(2))], lr=0.1)
    calls: list[Callable[[], object]] = [
        lambda: gradwire.attach(model, "off", optimizer=whole, sync_every=0),
        lambda: gradwire.attach(model, "off", optimizer=whole, sync_every=2.5),  # type: ignore[arg-type]
        lambda: gradwire.attach(model, "off", sync_every=5),
        lambda: gradwire.attach(model, "off", optimizer=part, sync_every=5),
        lambda: gradwire.attach(model, "off", optimizer=others, sync_every=5),
        lambda: gradwire.attach(model, "off", optimizer=5, sync_every=5),  # type: ignore[arg-type]
        lambda: gradwire.attach(unused, "off", optimizer=sgd(unused), sync_every=5),
        lambda: gradwire.attach(model, "off", optimizer=whole, sync_seconds=5, plan="ring"),
        lambda: gradwire.attach(model, "off", optimizer=whole, sync_every=5, outer="nestorov"),
        lambda: gradwire.attach(model, "off", optimizer=whole, sync_every=5, outer=lambda p: 5),  # type: ignore[arg-type, return-value]
        lambda: gradwire.attach(model, "off", optimizer=whole, outer="average"),
        lambda: gradwire.attach(model, "off", optimizer=whole, sync_every="auto", num_fragments=2),
        lambda: gradwire.attach(model, "off", optimizer=whole, sync_every=5 + rank),
        lambda: gradwire.attach(model, "off", optimizer=whole, sync_every=5, outer=adam if rank else average),
    ]
    errors = config_errors(calls)
    with torch.no_grad():
        next(net.parameters()).add_(rank)
    try:
        gradwire.attach(model, "off", optimizer=whole, sync_every=5)
    except gradwire.ConfigError as error:
        errors.append(str(error))
    return errors
