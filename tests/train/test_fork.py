"""Forked children (DataLoader workers, os.fork): they cannot use gradwire, and do not affect their parent."""

from __future__ import annotations

import atexit
import gc
import multiprocessing
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing import process
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import gradwire
from gradwire.observe.reader import Damage, read
from gradwire.transport.wires.ltp import Endpoint
from gradwire.transport.wires.native import NativeWire
from gradwire.transport.wires.tcp import TcpEndpoint
from tests.train import jobs
from tests.train.ranks import Ranks

SECRET = bytes(range(32))
# Enough for a child on a busy machine; a child that waits for a thread that it does not have would never end.
LIMIT = 60.0


def in_child(work: Callable[[], None]) -> int:
    """The exit code of a forked child that calls `work` and its exit functions; -1 if it does not end."""
    gc.collect()  # torch's groups of earlier jobs: their destructors wait for threads, which a child does not have
    child = os.fork()
    if child == 0:
        code = 1
        process._children.clear()  # as multiprocessing does: this child must not end the ranks of the tests
        try:
            work()
            gc.collect()
            atexit._run_exitfuncs()
            code = 0
        finally:
            os._exit(code)
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return -1


def _backward(model: DistributedDataParallel, rank: int, step: int) -> torch.Tensor:
    model.zero_grad()
    inputs, labels = jobs.batch(rank, step)
    torch.nn.functional.cross_entropy(model(inputs), labels).backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def _fork_in_training(rank: int, world: int, config: Any) -> tuple[int, bool, int]:
    model = DistributedDataParallel(jobs.small_net(), bucket_cap_mb=0.02)
    handle = gradwire.attach(model, config)
    for step in range(2):
        _backward(model, rank, step)
    code = in_child(handle.close)
    dist.barrier()
    equal = all(jobs.same_everywhere(_backward(model, rank, step)) for step in range(2, 5))
    made = handle.step
    handle.close()
    return code, equal, made


CONFIGS = [
    "int8",
    "auto",
    {"level": "int8", "transport": {"kind": "ltp", "timeout": 20.0}},
    {"level": "int8", "transport": {"kind": "tcp", "timeout": 20.0}},
    {"level": "int8", "plan": "star", "transport": {"timeout": 20.0}},
]


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_a_child_that_closes_the_handle_and_exits_does_not_affect_the_parents_session(
    ranks: Ranks, config: Any
) -> None:
    assert ranks.run(2, _fork_in_training, config) == [(0, True, 5)] * 2


def test_a_child_of_a_rank_of_the_gradwire_backend_does_not_affect_the_group(ranks: Ranks) -> None:
    assert ranks.on("gradwire").run(2, _fork_in_training, "off") == [(0, True, 5)] * 2


def _collective_in_child(rank: int, world: int) -> tuple[int, float]:
    def collective() -> None:
        with pytest.raises(gradwire.ConfigError, match="forked"):
            dist.all_reduce(torch.ones(1))

    code = in_child(collective)
    total = torch.ones(1)
    dist.all_reduce(total)
    return code, float(total)


def test_a_collective_in_a_child_is_refused_and_does_not_affect_the_group(ranks: Ranks) -> None:
    assert ranks.on("gradwire").run(2, _collective_in_child) == [(0, 2.0)] * 2


class Inputs(Dataset[torch.Tensor]):
    """Closes the model's handle in the worker, as garbage collection there might."""

    def __init__(self, handle: gradwire.Handle) -> None:
        self._handle = handle

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        self._handle.close()
        gc.collect()
        return torch.full((40,), float(index))


def _loader(rank: int, world: int, config: Any) -> bool:
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    model = DistributedDataParallel(jobs.small_net(), bucket_cap_mb=0.02)
    handle = gradwire.attach(model, config)
    _backward(model, rank, 0)
    loader = DataLoader(Inputs(handle), batch_size=2, num_workers=2, multiprocessing_context="fork")
    equal = True
    for _ in range(2):
        for inputs in loader:
            model.zero_grad()
            model(inputs + rank).sum().backward()
            equal = equal and jobs.same_everywhere(torch.cat([p.grad.flatten() for p in model.parameters()]))
    assert handle.step == 9
    handle.close()
    return equal


@pytest.mark.parametrize("config", [CONFIGS[2], CONFIGS[3]], ids=str)
def test_training_continues_beside_forked_loader_workers(ranks: Ranks, config: Any) -> None:
    assert ranks.run(2, _loader, config) == [True, True]


def _recorded(rank: int, world: int, folder: str) -> tuple[int, list[str]]:
    """The child's exit code, and the files of the recording then."""
    model = DistributedDataParallel(jobs.small_net(), bucket_cap_mb=0.02)
    handle = gradwire.attach(model, "int8", record=folder)
    handle.note(loss=1.0, before=1.0)
    code = in_child(handle.close)
    files = sorted(path.name for path in Path(folder).glob(f"rank{rank:05d}*"))
    for step in range(3):
        _backward(model, rank, step)
    handle.note(loss=1.0, after=1.0)
    handle.close()
    return code, files


def test_a_child_neither_writes_nor_finishes_the_recording_of_its_parent(ranks: Ranks, tmp_path: Path) -> None:
    results = ranks.run(2, _recorded, str(tmp_path))
    assert results == [(0, [f"rank{rank:05d}.0000.jsonl"]) for rank in range(2)]
    damage = Damage()
    kinds = Counter((record.rank, type(record.event).__name__) for record in read(tmp_path, damage))
    assert not damage
    for rank in range(2):
        assert kinds[rank, "Noted"] == 2
        assert kinds[rank, "Ended"] == kinds[rank, "Opened"] == kinds[rank, "Attached"] == 1
        assert kinds[rank, "Stepped"] >= 2


def _hook_in_child(rank: int, world: int) -> int:
    model = DistributedDataParallel(jobs.small_net())
    gradwire.attach(model, "int8")

    def synchronise() -> None:
        ((hook, state),) = model._comm_hooks
        with pytest.raises(gradwire.ConfigError, match="forked"):
            hook(state, None)

    return in_child(synchronise)


def test_a_backward_in_a_child_is_refused(ranks: Ranks) -> None:
    assert ranks.run(1, _hook_in_child) == [0]


@pytest.mark.parametrize("kind", [Endpoint, TcpEndpoint])
def test_a_wire_in_a_child_is_refused_and_keeps_the_parents_connection(kind: type[NativeWire]) -> None:
    with kind(0, SECRET) as first, kind(1, SECRET) as second:  # type: ignore[call-arg]
        answering = threading.Thread(target=first.connect, args=({1: ("127.0.0.1", second.port)},))
        answering.start()
        second.connect({0: ("127.0.0.1", first.port)})
        answering.join(LIMIT)

        def use_and_close() -> None:
            with pytest.raises(gradwire.LinkError, match="forked"):
                first.send(1, b"from the child")
            first.close()
            second.close()

        assert in_child(use_and_close) == 0
        received = bytearray(5)
        transfer = second.post(0, received)
        first.send(1, b"hello").wait(10.0)
        transfer.wait(10.0)
        assert received == b"hello"
