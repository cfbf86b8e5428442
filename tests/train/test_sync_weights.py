"""sync_weights: ranks end with what DDP's constructor gives them, and send only what differs."""

from __future__ import annotations

import hashlib
import os
import socket
import stat
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.integrations.ddp_init_sync import construct_synchronised
from tests.train.ranks import Ranks

BACKENDS = ["gloo", "gradwire"]
SCRIPT = Path(__file__).parent / "init_sync_script.py"
# Two ranks import torch on a machine that may be busy with other tests.
DEADLINE = 150.0
# TCP_INFO's bytes_acked: what this end of a connection sent and the other received.
_BYTES_ACKED = 120


class Mixed(nn.Module):
    """Every kind of tensor that DDP broadcasts: tied and frozen weights, memory formats, buffers of several types."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(50, 24)
        self.head = nn.Linear(24, 50, bias=False)
        self.head.weight = self.embed.weight
        self.norm = nn.BatchNorm1d(24)
        self.norm.running_mean.uniform_()  # type: ignore[union-attr]
        self.norm.num_batches_tracked.fill_(seed)  # type: ignore[union-attr, operator]
        self.conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.frozen = nn.Linear(24, 24).requires_grad_(False)
        self.in_half = nn.Parameter(torch.randn(31).half())
        self.in_brain = nn.Parameter(torch.randn(7, 3).bfloat16())
        self.scalar = nn.Parameter(torch.randn(()))
        self.register_buffer("ids", torch.randint(100, (5,)))
        self.register_buffer("mask", torch.rand(9) > 0.5)
        self.register_buffer("turned", torch.randn(6, 4).t())
        self.register_buffer("empty", torch.zeros(0, 3))

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.norm(self.embed(ids)))  # type: ignore[no-any-return]


def state(net: nn.Module) -> dict[str, str]:
    """A digest of every tensor, so that types and NaNs count."""
    return {
        name: f"{one.dtype} {tuple(one.shape)} "
        + hashlib.sha256(one.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()
        for name, one in net.state_dict().items()
    }


def sent_bytes() -> int:
    """What this process has sent over all its TCP connections."""
    total = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as connection:
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        except OSError:
            continue
        total += struct.unpack_from("=Q", info, _BYTES_ACKED)[0] if len(info) >= _BYTES_ACKED + 8 else 0
    return total


def _by_ddp(rank: int, world: int, seeds: list[int], **ddp: Any) -> dict[str, str]:
    net = Mixed(seeds[rank])
    DistributedDataParallel(net, **ddp)
    return state(net)


def _synchronised(rank: int, world: int, seeds: list[int]) -> tuple[dict[str, str], gradwire.WeightSync]:
    net = Mixed(seeds[rank])
    result = gradwire.sync_weights(net)
    DistributedDataParallel(net, init_sync=False)
    return state(net), result


@pytest.mark.parametrize("backend", BACKENDS)
def test_different_weights_become_what_ddp_makes_of_them(ranks: Ranks, backend: str) -> None:
    seeds = [1, 2, 3]
    by_ddp = ranks.on("gloo").run(3, _by_ddp, seeds)
    results = ranks.on(backend).run(3, _synchronised, seeds)
    for (own, result), expected in zip(results, by_ddp, strict=True):
        assert own == expected
        assert result.receivers == (1, 2)
        assert 0 < result.sent < result.total, "empty tensors and BatchNorm's constants are equal everywhere"
        assert "sent from rank 0 to ranks 1, 2" in str(result)


@pytest.mark.parametrize("backend", BACKENDS)
def test_equal_weights_are_not_sent(ranks: Ranks, backend: str) -> None:
    results = ranks.on(backend).run(3, _synchronised, [4, 4, 4])
    for own, result in results:
        assert own == results[0][0]
        assert result.equal
        assert result.sent == 0
        assert "nothing was sent" in str(result)


def _only_one_tensor(rank: int, world: int) -> tuple[Tensor, gradwire.WeightSync]:
    net = Mixed(5)
    if rank == 2:
        with torch.no_grad():
            net.scalar.fill_(float("nan"))
    return net.scalar.detach(), gradwire.sync_weights(net)


def test_only_ranks_and_tensors_that_differ_take_part(ranks: Ranks) -> None:
    results = ranks.run(3, _only_one_tensor)
    for scalar, result in results:
        assert torch.equal(scalar, results[0][0])
        assert (result.receivers, result.sent) == ((2,), 4)


def _large(rank: int, world: int, seed: int, build: str) -> tuple[int, float]:
    """Bytes sent while DDP is built, and the sum of the weights."""
    torch.manual_seed(seed)
    net = nn.Linear(1000, 1000)
    dist.barrier()
    before = sent_bytes()
    if build == "gradwire":
        gradwire.sync_weights(net)
    DistributedDataParallel(net, init_sync=build == "ddp")
    dist.barrier()
    return sent_bytes() - before, float(net.weight.sum())


def _large_by_rank(rank: int, world: int, build: str) -> tuple[int, float]:
    return _large(rank, world, rank, build)


def test_equal_ranks_send_next_to_nothing(ranks: Ranks) -> None:
    ddp = ranks.run(3, _large, 0, "ddp")
    own = ranks.run(3, _large, 0, "gradwire")
    assert ddp[0][0] > 4_000_000
    assert max(sent for sent, _ in own) < 20_000
    assert {total for _, total in ddp} == {total for _, total in own}


def test_no_rank_sends_different_weights_twice(ranks: Ranks) -> None:
    own = ranks.run(3, _large_by_rank, "gradwire")
    first, second, last = (sent for sent, _ in own)
    assert 4_000_000 < first < 4_500_000
    assert 4_000_000 < second < 4_500_000
    assert last < 200_000
    assert len({total for _, total in own}) == 1


MISMATCHES: dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module], str]] = {
    "shape": (lambda: nn.Linear(4, 3), lambda: nn.Linear(3, 3), "float32 3x4"),
    "same size": (lambda: nn.Linear(4, 3, bias=False), lambda: nn.Linear(3, 4, bias=False), "float32 4x3"),
    "more tensors": (lambda: nn.Linear(4, 3), lambda: nn.Linear(4, 3, bias=False), "no more tensors"),
    "type": (lambda: nn.Linear(4, 3), lambda: nn.Linear(4, 3).bfloat16(), "bfloat16"),
    "name": (lambda: nn.Sequential(nn.Linear(2, 2)), lambda: nn.Linear(2, 2), "parameter 0.weight"),
    "buffer": (lambda: nn.BatchNorm1d(3), lambda: nn.BatchNorm1d(3, track_running_stats=False), "running_mean"),
}


def _mismatched(rank: int, world: int, which: str, by_run: bool) -> str:
    first, other, _ = MISMATCHES[which]
    net = first() if rank != world - 1 else other()
    try:
        if by_run:
            model = DistributedDataParallel.__new__(DistributedDataParallel)
            construct_synchronised(DistributedDataParallel.__init__, model, net)
        else:
            gradwire.sync_weights(net)
    except gradwire.ConfigError as error:
        return str(error)
    return "no error"


@pytest.mark.parametrize("which", MISMATCHES)
def test_different_models_are_one_error_on_every_rank(ranks: Ranks, which: str) -> None:
    errors = ranks.run(3, _mismatched, which, which == "shape", timeout=60.0)
    assert len(set(errors)) == 1, errors
    assert "the ranks have different models" in errors[0]
    assert "rank 2 has" in errors[0]
    assert MISMATCHES[which][2] in errors[0]


def _left_alone(rank: int, world: int) -> str:
    """Rank 1 ends before the others compare their weights."""
    if rank == 1:
        return "left"
    os.environ["GRADWIRE_TRANSPORT_TIMEOUT"] = "1"
    try:
        gradwire.sync_weights(nn.Linear(4, 3))
    except RuntimeError as error:
        return type(error).__name__
    finally:
        del os.environ["GRADWIRE_TRANSPORT_TIMEOUT"]
    return "no error"


def test_nobody_waits_for_a_rank_that_has_left() -> None:
    # A pool of its own: groups in which a rank is missing cannot be used by the next test.
    ranks = Ranks()
    first, left, last = ranks.run(3, _left_alone, timeout=55.0)
    ranks.close()
    assert left == "left"
    assert {first, last} <= {"RuntimeError", "DistBackendError", "DistNetworkError"}


def _ignoring(rank: int, world: int) -> tuple[float, float]:
    net = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    net._ddp_params_and_buffers_to_ignore = ["1.weight"]  # type: ignore[assignment]
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.fill_(float(rank))
    gradwire.sync_weights(net)
    return float(net[0].weight), float(net[1].weight)


def test_what_ddp_ignores_stays_as_it_is(ranks: Ranks) -> None:
    assert ranks.run(2, _ignoring) == [(0.0, 0.0), (0.0, 1.0)]


def _constructed(rank: int, world: int, ddp: dict[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """What DDP alone and DDP under gradwire.run make of different weights."""
    alone, by_run = Mixed(rank), Mixed(rank)
    DistributedDataParallel(alone, **ddp)
    model = DistributedDataParallel.__new__(DistributedDataParallel)
    construct_synchronised(DistributedDataParallel.__init__, model, by_run, **ddp)
    assert model.module is by_run
    return state(alone), state(by_run)


@pytest.mark.filterwarnings("ignore:.*broadcast_buffers.*:FutureWarning")
@pytest.mark.parametrize(
    "ddp",
    [
        {},
        {"broadcast_buffers": False},
        {"broadcast_buffers": True},
        {"forward_sync_buffers": False},
        {"init_sync": False},
    ],
    ids=str,
)
def test_under_run_the_constructor_gives_what_it_gives_alone(ranks: Ranks, ddp: dict[str, Any]) -> None:
    for alone, by_run in ranks.run(2, _constructed, ddp):
        assert alone == by_run


def run_script(*command: str, **settings: str) -> dict[str, set[str]]:
    """Each model's digests over all ranks."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GRADWIRE_")}
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *command, str(SCRIPT)],
        env={**kept, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", **settings},
        capture_output=True, text=True, timeout=DEADLINE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, set[str]] = {}
    for line in done.stdout.splitlines():
        name, digest = line.split()
        found.setdefault(name, set()).add(digest)
    return found


@pytest.fixture(scope="module")
def alone() -> dict[str, set[str]]:
    """What the script prints by itself."""
    return run_script()


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_unchanged_script_under_run_has_the_weights_that_it_has_alone(
    backend: str, alone: dict[str, set[str]]
) -> None:
    by_run = run_script("-m", "gradwire.run", GRADWIRE_BACKEND=backend, GRADWIRE_LEVEL="int8")
    assert alone == by_run
    assert {name: len(digests) for name, digests in by_run.items()} == {"same": 1, "other": 1}


def _wrong_call(rank: int, world: int) -> str:
    try:
        gradwire.sync_weights([torch.ones(1)])  # type: ignore[arg-type]
    except gradwire.ConfigError as error:
        return str(error)
    return "no error"


def test_what_is_no_model_is_refused(ranks: Ranks) -> None:
    assert "list is not a torch module" in ranks.run(1, _wrong_call)[0]
