"""Contestants: ways to synchronise gradients, by name, each with its best settings.

A contestant installs itself on a DDP model; what `install` returns is closed after the block. To add one, write an
`install` function and one line in CONTESTANTS.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Protocol

import torch
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from gradwire.decide.registry import is_controller
from gradwire.errors import ConfigError
from gradwire.level import Level
from harness.topk import FixedTopK

RING = "ring-bound"
NO_SYNC = "no-sync"
# Buckets of a few megabytes overlap with backward and still fill the link.
GRADWIRE_BUCKET_MB = 5.0
# After this many steps a controller has measured the network and settled; a training run has thousands.
ADAPTIVE_WARMUP = 40


class Installed(Protocol):
    """An installed contestant. `predicted`: bytes it predicts to have sent so far; None if it does not count them.

    `levels`: number of buckets sent so far at each of gradwire's levels; empty for other contestants.
    """

    def predicted(self) -> int | None: ...

    def levels(self) -> dict[str, int]: ...

    def close(self) -> None: ...


class NoReport:
    """A contestant that counts nothing and needs no closing."""

    def predicted(self) -> int | None:
        return None

    def levels(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Contestant:
    """`bucket_mb` is DDP's bucket_cap_mb; `warmup` steps are not measured (PowerSGD starts at its third)."""

    name: str
    settings: str
    install: Callable[[DistributedDataParallel], Installed]
    bucket_mb: float = 25.0
    warmup: int = 2


def _plain(model: DistributedDataParallel) -> Installed:
    return NoReport()


def _no_sync(model: DistributedDataParallel) -> Installed:
    model.register_comm_hook(None, _noop_hook)
    return NoReport()


def _noop_hook(state: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


_noop_hook.__annotations__ = {"bucket": GradBucket, "return": torch.futures.Future[torch.Tensor]}


def _fp16(model: DistributedDataParallel) -> Installed:
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return NoReport()


def _powersgd(rank: int) -> Callable[[DistributedDataParallel], Installed]:
    def install(model: DistributedDataParallel) -> Installed:
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=rank, start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        return NoReport()

    return install


def _topk(ratio: float) -> Callable[[DistributedDataParallel], Installed]:
    def install(model: DistributedDataParallel) -> Installed:
        hook = FixedTopK(ratio)
        model.register_comm_hook(hook, FixedTopK.hook)
        return NoReport()

    return install


class _Gradwire:
    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def predicted(self) -> int | None:
        return int(self._handle.summary().wire_bytes)

    def levels(self) -> dict[str, int]:
        return dict(self._handle.summary().levels)

    def close(self) -> None:
        self._handle.close()


def _gradwire(level: str) -> Callable[[DistributedDataParallel], Installed]:
    def install(model: DistributedDataParallel) -> Installed:
        import gradwire

        # A fixed level is timed after few steps, so from the first one on; controllers have their own warm-up.
        return _Gradwire(gradwire.attach(model, {"level": level, "compress": {"warmup": 0}}))

    return install


def _torchft(model: DistributedDataParallel) -> Installed:
    from harness.torchft_contestant import TorchftContestant

    return TorchftContestant(model)


def _hivemind(model: DistributedDataParallel) -> Installed:
    from harness.hivemind_contestant import HivemindContestant

    return HivemindContestant(model)


CONTESTANTS: dict[str, Contestant] = {
    entry.name: entry
    for entry in (
        Contestant("ddp", "gloo all-reduce, 25 MB buckets (torch's default)", _plain),
        Contestant("ddp-1mb", "gloo all-reduce, 1 MB buckets", _plain, bucket_mb=1),
        Contestant(NO_SYNC, "no communication: compute only", _no_sync),
        Contestant("fp16-hook", "torch's fp16_compress_hook on gloo, 25 MB buckets", _fp16),
        # It starts collectives inside callbacks; with more than one bucket they mismatch on gloo.
        Contestant("powersgd-r1", "torch's PowerSGD, rank 1, warm start, one bucket", _powersgd(1), 1000, 4),
        Contestant("powersgd-r2", "torch's PowerSGD, rank 2, warm start, one bucket", _powersgd(2), 1000, 4),
        Contestant("powersgd-r4", "torch's PowerSGD, rank 4, warm start, one bucket", _powersgd(4), 1000, 4),
        Contestant("topk-0.1", "fixed top 10 % with error feedback, torch ops, fp32 + int32 all-gather", _topk(0.1), 5),
        Contestant(
            "topk-0.01", "fixed top 1 % with error feedback, torch ops, fp32 + int32 all-gather", _topk(0.01), 5
        ),
        Contestant("torchft", "torchft's managed gloo all-reduce, quorum and commit every step", _torchft),
        Contestant(
            "hivemind-fp16",
            "hivemind's averager, fp16, one group, one bucket; payload and CPU of its daemon are not counted",
            _hivemind,
            1000,
        ),
    )
}
# Contestants that need another package.
OPTIONAL = {"torchft": "torchft", "hivemind-fp16": "hivemind"}
BOUND_SETTINGS = (
    "not run: 2 (W-1)/W of the fp32 gradient over the slowest access link, with TCP, IP and Ethernet headers"
)


def find(name: str) -> Contestant:
    """A contestant by name; `gradwire:LEVEL` for any level, `gradwire:LEVEL@MB` for another size of buckets."""
    if name in OPTIONAL and find_spec(OPTIONAL[name]) is None:
        raise ConfigError(f"contestant: {name} is not installed; pip install {OPTIONAL[name]}, or leave it out")
    if name in CONTESTANTS:
        return CONTESTANTS[name]
    kind, _, rest = name.partition(":")
    if kind == "gradwire":
        level, _, megabytes = rest.partition("@")
        bucket_mb = float(megabytes or GRADWIRE_BUCKET_MB)
        adaptive = is_controller(level)
        canonical = level if adaptive else str(Level.parse(level, "contestant"))
        about = f"gradwire at {canonical}, {bucket_mb:g} MB buckets"
        return Contestant(name, about, _gradwire(level), bucket_mb, ADAPTIVE_WARMUP if adaptive else 2)
    known = ", ".join([*CONTESTANTS, RING, "gradwire:LEVEL", "gradwire:LEVEL@BUCKET_MB"])
    raise ConfigError(f"contestant: {name!r} is not one of {known}")
