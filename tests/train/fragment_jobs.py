"""What the ranks of the tests of streaming fragments run, and the reference in plain torch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.events import OuterStepped
from tests.train.jobs import flat, same_everywhere, small_net
from tests.train.local_jobs import Normalised, _through_bytes, config_errors, nesterov, sgd, train_step


@dataclass(frozen=True)
class Case:
    """Rounds of `every` steps in `count` fragments; the layers of the small net by fragment are those of `layers`."""

    every: int = 6
    count: int = 3
    delay: int = 0
    progress: float = 1.0
    level: Any = "off"

    @property
    def settings(self) -> dict[str, Any]:
        level = self.level if isinstance(self.level, dict) else {"level": self.level}
        return {**level, "fragment_progress": self.progress}

    @property
    def arguments(self) -> dict[str, Any]:
        return {"sync_every": self.every, "num_fragments": self.count, "fragment_sync_delay": self.delay}


# The parameters of the small net's layers in fragments: its middle layer is the largest.
FRAGMENTS = {1: [[0, 1, 2, 3, 4, 5]], 2: [[0, 1], [2, 3, 4, 5]], 3: [[0, 1], [2, 3], [4, 5]]}


def reference(rank: int, world: int, case: Case, steps: int, make: Any = sgd) -> list[tuple[Tensor, Tensor]]:
    """Streaming fragments in plain torch: the local and the global weights after every step."""
    net = small_net()
    optimizer, own = make(net), list(net.parameters())
    shared = [one.detach().clone().requires_grad_() for one in own]
    outers = [nesterov([shared[i] for i in part]) for part in FRAGMENTS[case.count]]
    found, flights = [], dict[int, tuple[int, dict[int, Tensor]]]()
    for step in range(1, steps + 1):
        train_step(net, optimizer, rank, step)
        for number, part in enumerate(FRAGMENTS[case.count]):
            if (step - 1) % case.every + 1 == (number + 1) * case.every // case.count:
                flights[number] = (step + case.delay, {i: own[i].detach().clone() for i in part})
                for i in part:
                    shared[i].grad = (shared[i].detach() - own[i].detach()) / world
                    dist.all_reduce(shared[i].grad)
        for number in [number for number, (due, _) in flights.items() if due == step]:
            outers[number].step()
            for i, sent in flights.pop(number)[1].items():
                own[i].detach().copy_(shared[i].detach() + case.progress * (own[i].detach() - sent))
        found.append((flat(net), torch.cat([one.detach().flatten() for one in shared])))
    return found


@dataclass
class Job:
    """An attached small net, its optimizer and its events."""

    rank: int
    case: Case
    net: nn.Module
    make: Callable[[nn.Module], torch.optim.Optimizer] = sgd
    events: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.model = DistributedDataParallel(self.net, bucket_cap_mb=0.02)
        self.optimizer = self.make(self.net)
        self.handle = gradwire.attach(self.model, self.case.settings, optimizer=self.optimizer, **self.case.arguments)
        self.handle.add_sink(self.events.append)

    def train(self, first: int, last: int) -> None:
        for step in range(first, last + 1):
            train_step(self.model, self.optimizer, self.rank, step)

    def shared(self) -> Tensor:
        with self.handle.global_weights():
            return flat(self.net)

    @property
    def outer_steps(self) -> list[OuterStepped]:
        return [one for one in self.events if isinstance(one, OuterStepped)]


@contextlib.contextmanager
def attached(rank: int, case: Case, **changes: Any) -> Iterator[Job]:
    job = Job(rank, case, changes.pop("net", None) or small_net(), **changes)
    yield job
    job.handle.close()


def against_reference(rank: int, world: int, case: Case, steps: int) -> list[tuple[float, float, bool]]:
    """After each step: the error of the local and of the global weights, and whether all ranks have the same ones."""
    found = []
    with attached(rank, case) as job:
        ours = []
        for step in range(1, steps + 1):
            job.train(step, step)
            ours.append((flat(job.net), job.shared()))
    for (local, shared), (local_expected, expected) in zip(ours, reference(rank, world, case, steps), strict=True):
        errors = float((local - local_expected).abs().max()), float((shared - expected).abs().max())
        found.append((*errors, same_everywhere(shared)))
    return found


def shared_weights(rank: int, world: int, case: Case, steps: int) -> dict[str, Any]:
    """Whether all ranks have the same global weights after each step, and the outer steps."""
    with attached(rank, case) as job:
        agreed, moved, last = [], 0, job.shared()
        for step in range(1, steps + 1):
            job.train(step, step)
            now = job.shared()
            moved += not torch.equal(now, last)
            last = now
            agreed.append(same_everywhere(now))
        return {"agreed": agreed, "moved": moved, "outer": job.outer_steps, "summary": str(job.handle.summary())}


def goes_on(rank: int, world: int, case: Case) -> tuple[int, bool]:
    """From step 3 on rank 1 makes no step before rank 0 has made all up to the one before the result is applied. (DDP
    itself rebuilds its buckets together at step 2.)"""
    store = dist.distributed_c10d._get_default_store()
    sent = case.every // case.count
    with attached(rank, case) as job:
        job.train(1, 2)
        if rank == 1:
            store.wait(["went on"])
        job.train(3, sent + case.delay - 1)
        if rank == 0:
            store.set("went on", "")
        before = len(job.outer_steps)
        job.train(sent + case.delay, sent + case.delay)
        return before, same_everywhere(job.shared())


def resumed(rank: int, world: int, case: Case, at: int, steps: int) -> tuple[Tensor, Tensor, int, bool]:
    """Some steps in one go, and with a checkpoint after `at` of them."""
    with attached(rank, case) as job:
        job.train(1, at)
        saved = {"gradwire": job.handle.state_dict(), "optimizer": job.optimizer.state_dict()}
        saved = torch.load(_through_bytes(saved), weights_only=True)
        job.train(at + 1, steps)
        whole = torch.cat([flat(job.net), job.shared()])
    with attached(rank, case) as job:
        job.train(50, 51 + case.every // case.count)  # what is loaded replaces this, also what is in flight
        job.handle.load_state_dict(saved["gradwire"])
        job.optimizer.load_state_dict(saved["optimizer"])
        job.train(at + 1, steps)
        in_flight = "flight" in saved["gradwire"]["local_steps"]
        return whole, torch.cat([flat(job.net), job.shared()]), job.handle.step, in_flight


def states_of(rank: int, world: int, case: Case, steps: int) -> tuple[dict[str, Any], Tensor, Tensor]:
    with attached(rank, case) as job:
        job.train(1, steps)
        return job.handle.state_dict(), flat(job.net), job.shared()


def load_states(rank: int, world: int, case: Case, states: list[Any]) -> tuple[Tensor, Tensor, list[bool]]:
    """A job of another size: local and global weights after loading, and whether replicas agree from there on."""
    with attached(rank, case) as job:
        job.handle.load_state_dict(states)
        local, shared, agreed = flat(job.net), job.shared(), []
        for step in range(1, case.every + 1):
            job.train(step, step)
            agreed.append(same_everywhere(job.shared()))
        return local, shared, agreed


def synchronised(rank: int, world: int, case: Case, steps: int) -> dict[str, Any]:
    """Everything that is in flight or not sent yet is in the weights of all ranks after `synchronise`."""
    with attached(rank, case) as job:
        job.train(1, steps)
        flying = job.handle._rounds.exchange.flight is not None  # type: ignore[attr-defined]
        job.handle.synchronise()
        agreed, count = same_everywhere(flat(job.net)), len(job.outer_steps)
        job.handle.synchronise()
        again = len(job.outer_steps)
        job.train(1, 2 * case.every)
        later = same_everywhere(job.shared())
        return {"flying": flying, "agreed": agreed, "idle": again == count, "later": later}


def detached(rank: int, world: int, case: Case, steps: int) -> dict[str, Any]:
    """Detached with an exchange in flight: plain DDP afterwards, nothing is left in residuals."""
    with attached(rank, case) as job:
        job.train(1, steps)
        job.handle.detach()
        agreed = [same_everywhere(flat(job.net))]
        left = len(job.handle.state_dict()["residuals"])
        for step in range(1, 4):
            job.train(step, step)
            agreed.append(same_everywhere(flat(job.net)))
        return {"agreed": agreed, "left": left}


def closed(rank: int, world: int, case: Case, steps: int) -> tuple[Tensor, Tensor]:
    """Closed with an exchange in flight: the weights before and after; the handle may be closed again."""
    with attached(rank, case) as job:
        job.train(1, steps)
        before = flat(job.net)
        job.handle.close()
        return before, flat(job.net)


def buffers(rank: int, world: int, delay: int) -> dict[str, Any]:
    """Running statistics are sent with the round's last fragment, and applied with it."""
    case = Case(every=2, count=1, delay=delay)
    with attached(rank, case, net=Normalised()) as job:
        norm = job.net.layers[1]  # type: ignore[index]
        assert isinstance(norm, nn.BatchNorm1d)
        assert norm.running_mean is not None
        job.train(1, 2)
        sent = norm.running_mean.clone()
        everyone = [torch.empty_like(sent) for _ in range(world)]
        dist.all_gather(everyone, sent)
        seen: list[Tensor] = []
        hook = norm.register_forward_hook(lambda *_: seen.append(norm.running_mean.clone()))  # type: ignore[union-attr]
        job.train(3, 2 + delay)
        hook.remove()
        expected = torch.stack(everyone).mean(0) + (seen[-1] - sent)
        with job.handle.global_weights():
            shared = same_everywhere(norm.running_mean)
        return {"mean": torch.allclose(norm.running_mean, expected, atol=1e-6), "shared": shared}


def wrong_calls(rank: int, world: int) -> list[str]:
    """Every call that must be refused, on all ranks alike."""
    net = small_net()
    model = DistributedDataParallel(net)
    optimizer = sgd(net)

    def attach(**arguments: Any) -> object:
        return gradwire.attach(model, arguments.pop("config", "off"), optimizer=optimizer, **arguments)

    calls: list[Callable[[], object]] = [
        lambda: attach(sync_every=6, num_fragments=4),
        lambda: attach(sync_every=2, num_fragments=3),
        lambda: attach(sync_every=6, num_fragments=3, fragment_sync_delay=3),
        lambda: attach(sync_every=6, num_fragments=0),
        lambda: attach(sync_every=6, fragment_sync_delay=1.5),
        lambda: attach(num_fragments=2),
        lambda: attach(config={"fragment_sync_delay": 2}),
        lambda: attach(sync_every=6, config={"fragment_progress": 1.5}),
        lambda: attach(sync_every=6, fragment_sync_delay=2, config={"level": "int8", "compress": {"prune": "zero"}}),
        lambda: attach(sync_every=6, num_fragments=2 + rank),
        lambda: attach(sync_every=6, fragment_sync_delay=1 + rank),
    ]
    return config_errors(calls)


def by_variable(rank: int, world: int) -> list[bool]:
    """As `gradwire.run` attaches, with fragments from the environment."""
    from gradwire.config import resolve
    from gradwire.integrations.ddp import attach_configured
    from gradwire.integrations.local_attach import LocalOptimizers

    net = small_net()
    model = DistributedDataParallel(net)
    variables = {"SYNC_EVERY": "6", "NUM_FRAGMENTS": "3", "FRAGMENT_SYNC_DELAY": "1", "LEVEL": "int8"}
    config = resolve(None, {f"GRADWIRE_{name}": value for name, value in variables.items()})
    handle = attach_configured(model, config, LocalOptimizers(None, None))
    optimizer, agreed = sgd(net), []
    for step in range(8):
        train_step(model, optimizer, rank, step)
        with handle.global_weights():
            agreed.append(same_everywhere(flat(net)))
    rounds = handle.summary().rounds
    assert rounds.last is not None
    assert (rounds.last.fragments, rounds.last.delay) == (3, 1)
    handle.close()
    return agreed
