"""What the ranks of the tests of rounds by time run, and the reference in plain torch. Clocks are scripted."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.clock import VirtualClock
from gradwire.events import OuterStepped
from gradwire.integrations.timed_handle import TimedHandle
from tests.train.jobs import batch, flat, same_everywhere, small_net
from tests.train.local_jobs import Normalised, _through_bytes, adamw_in_groups, config_errors, nesterov, sgd, train_step

SECONDS = 10.0


class Job:
    """An attached small net. Each step takes `speed` seconds of this rank's own clock, which stands still otherwise;
    `patient`: it waits until the others have come, however long a busy machine takes."""

    def __init__(self, rank: int, speed: float, config: Any = "off", patient: bool = True, **changes: Any) -> None:
        self.rank, self.speed, self.net = rank, speed, changes.pop("net", None) or small_net()
        self.model = DistributedDataParallel(self.net, bucket_cap_mb=0.02)
        self.optimizer = changes.pop("make", sgd)(self.net)
        settings = {"sync_seconds": SECONDS, **changes}
        handle = gradwire.attach(self.model, config, optimizer=self.optimizer, **settings)
        assert isinstance(handle, TimedHandle)
        self.handle, self.rounds, self.clock = handle, handle._timed, VirtualClock()
        self.rounds.clock, self.rounds._began = self.clock, self.clock.now()
        self.outer_steps: list[OuterStepped] = []
        self.handle.add_sink(lambda event: self.outer_steps.append(event) if isinstance(event, OuterStepped) else None)
        agreement, self.forwards = self.rounds.agreement, 0
        handle._late.close()
        if patient:
            wait = agreement.all_here
            # DDP's second forward pass waits for all ranks, so a rank cannot wait for the others before it.
            agreement.all_here = lambda seconds: wait(None if self.forwards > 1 else seconds)  # type: ignore[method-assign]

    def step(self) -> None:
        self.clock.advance(self.speed)
        self.forwards += 1
        train_step(self.model, self.optimizer, self.rank, self.handle.step)

    def train(self, exchanges: int) -> list[Tensor]:
        """Until so many exchanges were applied; the global weights after each."""
        seen: list[Tensor] = []
        while len(seen) < exchanges:
            before = len(self.outer_steps)
            self.step()
            if len(self.outer_steps) > before:
                seen.append(self.shared())
        return seen

    def train_to(self, exchanges: int) -> None:
        """Until the job has sent so many exchanges."""
        while self.rounds.session.step < exchanges:
            self.step()

    def shared(self) -> Tensor:
        with self.handle.global_weights():
            return flat(self.net)


@contextlib.contextmanager
def attached(rank: int, speeds: Sequence[float], config: Any = "off", **changes: Any) -> Iterator[Job]:
    job = Job(rank, speeds[rank], config, **changes)
    yield job
    job.handle.close()


def reference(rank: int, world: int, speeds: Sequence[float], rounds: int) -> Tensor:
    """Rounds by time in plain torch: the mean of pseudo-gradients weighted by steps, then Nesterov momentum."""
    net, step = small_net(), 0
    optimizer, shared = sgd(net), flat(net).requires_grad_()
    outer = nesterov([shared])
    counts = [next(count for count in range(1, 100) if count * speed >= SECONDS) for speed in speeds]
    for _ in range(rounds):
        for _ in range(counts[rank]):
            train_step(net, optimizer, rank, step)
            step += 1
        share = counts[rank] / sum(counts)
        shared.grad = (shared.detach() - flat(net)) * (world * share) * (1.0 / world)
        dist.all_reduce(shared.grad)
        outer.step()
        nn.utils.vector_to_parameters(shared.detach().clone(), net.parameters())
    return flat(net)


def against_reference(rank: int, world: int, speeds: Sequence[float]) -> bool:
    with attached(rank, speeds) as job:
        job.train(4)
        ours = flat(job.net)
    return torch.equal(ours, reference(rank, world, speeds, 4))


def trained(rank: int, world: int, speeds: Sequence[float], config: Any, changes: dict[str, Any]) -> dict[str, Any]:
    with attached(rank, speeds, config, **changes) as job:
        seen = job.train(4)
        job.handle.synchronise()
        seen.append(flat(job.net))
        return {"seen": torch.stack(seen), "steps": job.handle.global_steps, "summary": str(job.handle.summary())}


def different_loops(rank: int, world: int, level: str) -> dict[str, Any]:
    """Rank 0 has four batches and rank 1 has thirty: both call `synchronise` after their own last one."""
    with attached(rank, (1.0, 1.0), level) as job:
        for _ in range((4, 30)[rank]):
            job.step()
        job.handle.synchronise()
        weights = [event.weight for event in job.outer_steps]
        return {"agreed": same_everywhere(flat(job.net)), "steps": job.handle.global_steps, "weights": weights}


def detached(rank: int, world: int) -> dict[str, Any]:
    """Detached after different numbers of steps: plain DDP afterwards, nothing is left in residuals."""
    with attached(rank, (1.0, 3.0), "topk:0.1", make=adamw_in_groups) as job:
        for _ in range((13, 6)[rank]):
            job.step()
        job.handle.detach()
        agreed = [same_everywhere(flat(job.net))]
        left = len(job.handle.state_dict()["residuals"])
        for step in range(3):
            train_step(job.model, job.optimizer, rank, step)
            agreed.append(same_everywhere(flat(job.net)))
        return {"agreed": agreed, "left": left}


def resumed(rank: int, world: int, config: Any, changes: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """With a checkpoint in the middle of the second round, after different numbers of steps, and without."""
    speeds, at = (1.0, 3.0), (13, 6)[rank]
    with attached(rank, speeds, config, make=adamw_in_groups, **changes) as job:
        for _ in range(at):
            job.step()
        saved = {"gradwire": job.handle.state_dict(), "optimizer": job.optimizer.state_dict()}
        saved = torch.load(_through_bytes(saved), weights_only=True)
        job.train_to(6)
        whole = torch.cat([flat(job.net), job.shared()])
    with attached(rank, speeds, config, make=adamw_in_groups, **changes) as job:
        job.handle.load_state_dict(saved["gradwire"])
        job.optimizer.load_state_dict(saved["optimizer"])
        job.train_to(6)
        return whole, torch.cat([flat(job.net), job.shared()])


def scaled(rank: int, world: int) -> tuple[list[bool], list[OuterStepped]]:
    """With a loss scaler; rank 1 overflows at every step of the first round and at one of the second."""
    with attached(rank, (2.0, 2.5), "int8") as job:
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        job.handle.follow(scaler)
        agreed = []
        while len(agreed) < 2:
            inputs, labels = batch(rank, job.handle.step)
            before, overflow = len(job.outer_steps), torch.inf if rank == 1 and job.handle.step < 5 else 1.0
            job.clock.advance(job.speed)
            job.forwards += 1
            job.optimizer.zero_grad()
            scaler.scale(F.cross_entropy(job.model(inputs), labels) * overflow).backward()
            scaler.step(job.optimizer)
            scaler.update()
            if len(job.outer_steps) > before:
                agreed.append(same_everywhere(flat(job.net)))
        return agreed, job.outer_steps


def buffers(rank: int, world: int) -> tuple[bool, bool]:
    """Running statistics become their mean weighted by steps, 5 to 2."""
    with attached(rank, (2.0, 5.0), net=Normalised()) as job:
        norm = job.net.layers[1]
        seen: list[Tensor] = []
        norm.register_forward_hook(lambda *_: seen.append(norm.running_mean.clone()))
        job.train(1)
        everyone = [torch.empty_like(seen[-1]) for _ in range(world)]
        dist.all_gather(everyone, seen[-1])
        expected = (5 * everyone[0] + 2 * everyone[1]) / 7
        return torch.allclose(norm.running_mean, expected, atol=1e-6), same_everywhere(norm.running_mean)


def slow_start(rank: int, world: int) -> Tensor:
    """Rank 0's first step takes longer than a round; DDP's second forward pass waits for a message of rank 0."""
    with attached(rank, (25.0, 1.0), patient=False) as job:
        return torch.stack(job.train(3))


def left_behind(rank: int, world: int, level: str) -> tuple[bool, list[OuterStepped], bool]:
    """On this machine's clock: rank 1's third step does not end before rank 0 has seen three outer steps without it."""
    store, events = dist.distributed_c10d._get_default_store(), list[OuterStepped]()
    net = small_net()
    model = DistributedDataParallel(net)
    optimizer = sgd(net)
    handle = gradwire.attach(model, {"level": level, "sync_wait": 1.0}, optimizer=optimizer, sync_seconds=0.2)
    handle.add_sink(lambda event: events.append(event) if isinstance(event, OuterStepped) else None)
    train_step(model, optimizer, rank, 0)
    train_step(model, optimizer, rank, 1)
    if rank == 1:
        store.wait(["left behind"])
    else:
        while sum(event.rank_steps[1] == 0 for event in events) < 3:
            train_step(model, optimizer, rank, len(events) + 2)
        store.set("left behind", "")
    train_step(model, optimizer, rank, 2)
    before = len(events)
    handle.synchronise()
    agreed = same_everywhere(flat(net))
    handle.close()
    return agreed, events, len(events) > before


def samples(rank: int, world: int) -> tuple[list[float | None], list[str]]:
    with attached(rank, (2.0, 5.0)) as job:
        errors = config_errors([lambda: job.handle.count_samples(0), lambda: job.handle.count_samples(1.5)])  # type: ignore[arg-type]
        for _ in range((5, 2)[rank]):
            job.handle.count_samples(6 * (rank + 1))
            job.handle.count_samples(2)
            job.step()
        return [event.weight for event in job.outer_steps], errors


def groups_left(rank: int, world: int) -> tuple[int, int]:
    """Process groups that torch knows, and descriptors that are open, more than before three attached models."""

    def open_now() -> tuple[int, int]:
        gc.collect()
        return len(dist.distributed_c10d._world.pg_map), len(os.listdir("/proc/self/fd"))

    def train() -> None:
        net = small_net()
        model, optimizer = DistributedDataParallel(net), sgd(net)
        handle = gradwire.attach(model, "int8", optimizer=optimizer, sync_seconds=0.05)
        for step in range(3):
            train_step(model, optimizer, rank, step)
        handle.synchronise()
        handle.close()

    train()
    before = open_now()
    for _ in range(3):
        train()
    groups, descriptors = open_now()
    return groups - before[0], descriptors - before[1]


def never_comes(rank: int, world: int) -> str:
    """Rank 1 makes two steps, and never another."""
    config = {"level": "off", "transport": {"timeout": 4}}
    job, error = Job(rank, 1.0, config, patient=False, sync_seconds=2.5), ""
    try:
        for _ in range(2 if rank == 1 else 100_000):
            job.step()
    except gradwire.LinkError as failure:
        error = str(failure)
    store = dist.distributed_c10d._get_default_store()
    store.set(f"ended{rank}", "")
    store.wait([f"ended{one}" for one in range(world)])
    with contextlib.suppress(gradwire.LinkError):
        job.handle.close()
    return error


def by_variable(rank: int, world: int) -> dict[str, Any]:
    """As `gradwire.run` attaches, on this machine's clock: a script that calls `attach` only to end together."""
    from gradwire.config import resolve
    from gradwire.integrations.ddp import attach_configured
    from gradwire.integrations.local_attach import LocalOptimizers

    net = small_net()
    model = DistributedDataParallel(net)
    config = resolve(None, {"GRADWIRE_SYNC_SECONDS": "0.05", "GRADWIRE_SYNC_WAIT": "0.5", "GRADWIRE_LEVEL": "int8"})
    attach_configured(model, config, LocalOptimizers(None, None))
    optimizer = sgd(net)
    for step in range((30, 12)[rank]):
        train_step(model, optimizer, rank, step)
    handle = gradwire.attach(model)
    handle.synchronise()
    agreed, last = same_everywhere(flat(net)), handle.summary().rounds.last
    handle.close()
    assert isinstance(handle, TimedHandle)
    assert last is not None
    return {"agreed": agreed, "steps": handle.global_steps, "seconds": last.sync_seconds}


def wrong_calls(rank: int, world: int) -> list[str]:
    """Every call that must be refused, on all ranks alike."""
    net = small_net()
    model = DistributedDataParallel(net)
    optimizer = sgd(net)

    def attach(**arguments: Any) -> object:
        return gradwire.attach(model, arguments.pop("config", "off"), optimizer=optimizer, **arguments)

    calls: list[Callable[[], object]] = [
        lambda: attach(sync_seconds=0),
        lambda: attach(sync_seconds=-1.0),
        lambda: attach(sync_seconds="30"),
        lambda: attach(sync_seconds=float("inf")),
        lambda: attach(sync_seconds=5, sync_every=20),
        lambda: attach(sync_seconds=5, sync_every="auto"),
        lambda: attach(sync_seconds=5, plan="ring"),
        lambda: attach(sync_seconds=700),
        lambda: attach(config={"sync_seconds": -1}),
        lambda: attach(config={"sync_wait": 1.5}, sync_seconds=5),
        lambda: gradwire.attach(model, "off", sync_seconds=5),
        lambda: attach(sync_seconds=5 + rank),
        lambda: attach(**({"sync_seconds": 5} if rank else {"sync_every": 20})),
        lambda: attach(sync_every=20).count_samples(5),  # type: ignore[attr-defined]
    ]
    return config_errors(calls)
