"""CUDA tensors beside gradwire, without a GPU: float64 tensors take the place of CUDA ones, gloo that of NCCL."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gradwire.backend import device_routing
from gradwire.backend.process_group import GradwireGroup
from gradwire.errors import ConfigError

LIMIT = timedelta(seconds=60)
CUDA = torch.device("cuda")


def _fake_device_type(tensor: Tensor | None) -> str:
    return "cuda" if tensor is not None and tensor.dtype == torch.float64 else "cpu"


@contextlib.contextmanager
def gpus(choice: str | None = "gloo") -> Iterator[None]:
    """A process that has a GPU, as far as the group can see; `choice` is GRADWIRE_CUDA."""
    with (
        mock.patch.object(device_routing, "device_type", _fake_device_type),
        mock.patch("torch.cuda.is_available", return_value=True),
        mock.patch.dict(os.environ, {"GRADWIRE_CUDA": choice} if choice else {}),
    ):
        yield


def started(group: Any) -> int:
    """How many operations gradwire itself has run."""
    return int(group._get_sequence_number_for_group())


def both_devices(rank: int, size: int) -> None:
    group: Any = dist.group.WORLD
    with gpus():
        assert not group.cuda.made, "made before the first CUDA tensor"
        near = torch.full((3,), float(rank))
        dist.all_reduce(near)
        assert not group.cuda.made
        assert group._device_types == [torch.device("cpu"), CUDA]
        before = started(group)
        every_collective(rank, size, torch.float64)
        assert started(group) == before, "went over gradwire's wires"
        assert isinstance(group._get_backend(CUDA), dist.ProcessGroupGloo)
        assert group._get_backend(torch.device("cpu")) is group
        every_collective(rank, size, torch.float32)
        assert started(group) > before
        group.set_timeout(LIMIT)


def every_collective(rank: int, size: int, dtype: torch.dtype) -> None:
    total, ranks = float(sum(range(size))), torch.arange(float(size), dtype=dtype)
    own = lambda count=2: torch.full((count,), float(rank), dtype=dtype)  # noqa: E731
    rows = lambda: [torch.zeros(2, dtype=dtype) for _ in range(size)]  # noqa: E731
    tensor = own()
    dist.all_reduce(tensor)
    assert (tensor == total).all()
    work = dist.all_reduce(tensor := own(), async_op=True)
    work.get_future().wait()
    assert (tensor == total).all()
    dist.broadcast(tensor := own(), 1)
    assert (tensor == 1).all()
    dist.reduce(tensor := own(), 0)
    assert rank != 0 or (tensor == total).all()
    dist.all_gather(outputs := rows(), own())
    assert torch.equal(torch.stack(outputs)[:, 0], ranks)
    dist.all_gather_into_tensor(tensor := torch.zeros(size, dtype=dtype), own(1))
    assert torch.equal(tensor, ranks)
    dist.gather(own(), outputs := rows() if rank == 0 else None, 0)
    assert rank != 0 or torch.equal(torch.stack(outputs)[:, 0], ranks)
    dist.scatter(tensor := own(), rows() if rank == 0 else None, 0)
    assert (tensor == 0).all()
    dist.reduce_scatter(tensor := own(), [own() for _ in range(size)])
    assert (tensor == total).all()
    dist.reduce_scatter_tensor(tensor := own(), own(2 * size))
    assert (tensor == total).all()
    dist.all_to_all(outputs := rows(), [own() for _ in range(size)])
    assert torch.equal(torch.stack(outputs)[:, 0], ranks)
    dist.all_to_all_single(tensor := torch.zeros(size, dtype=dtype), own(size))
    assert torch.equal(tensor, ranks)
    with dist.distributed_c10d._coalescing_manager():
        sums = [own(), own(3)]
        for one in sums:
            dist.all_reduce(one)
    assert all((one == total).all() for one in sums)
    target, source = (rank + 1) % size, (rank - 1) % size
    buffer = torch.zeros(2, dtype=dtype)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, buffer, source), dist.P2POp(dist.isend, own(), target)]):
        work.wait()
    assert (buffer == source).all()


def a_model(rank: int, size: int) -> bool:
    """DDP of a model on the other device; its buckets are reduced by the other backend."""
    group: Any = dist.group.WORLD
    with gpus():
        torch.manual_seed(0)
        model = DistributedDataParallel(nn.Linear(4, 2).double())
        before = started(group)
        model(torch.full((1, 4), float(rank), dtype=torch.float64)).sum().backward()
        expected = torch.full((2, 4), sum(range(size)) / size, dtype=torch.float64)
        torch.testing.assert_close(model.module.weight.grad, expected)
        return started(group) == before and group.cuda.made


def sub_groups(rank: int, size: int) -> None:
    """Each group has its own backend, created when it is needed."""
    group: Any = dist.new_group([0, 1])
    parts: list[Any] = [dist.group.WORLD.split_group([0, 1]) for _ in range(2)]  # type: ignore[union-attr]
    if rank > 1:
        return
    with gpus():
        for one in (group, *parts):
            assert not one.cuda.made
            tensor = torch.ones(2, dtype=torch.float64)
            one.allreduce([tensor]).wait()
            assert (tensor == 2).all()
            assert one.cuda.made
        assert not dist.group.WORLD.cuda.made  # type: ignore[union-attr]


def staged(rank: int, size: int) -> None:
    """GRADWIRE_CUDA=gradwire: through host memory, over gradwire's wires."""
    group: Any = dist.group.WORLD
    with gpus("gradwire"):
        before = started(group)
        tensor = torch.ones(2, dtype=torch.float64)
        dist.all_reduce(tensor)
        assert (tensor == size).all()
        assert started(group) == before + 1
        assert group._get_backend(CUDA) is group


def by_name(rank: int, size: int, port: int, name: str, kind: str) -> str:
    """A device map in place of a name: which backend serves CUDA tensors."""
    store = dist.PrefixStore(f"{name}/{kind}", dist.TCPStore("127.0.0.1", port, is_master=False, timeout=LIMIT))
    dist.init_process_group(name, store=store, rank=rank, world_size=size, timeout=LIMIT)
    group: Any = dist.group.WORLD
    assert isinstance(group, GradwireGroup)
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    dist.all_reduce(tensor, group=dist.new_group(list(range(size))))
    assert (tensor == size * size).all()
    with gpus(kind or None):
        return str(group.cuda.choice())


def nccl(rank: int, size: int) -> dict[str, Any]:
    """The arguments with which NCCL would be created."""
    given: dict[str, Any] = {}

    class Options:
        pass

    def make(store: Any, its_rank: int, its_size: int, options: Any) -> Any:
        given.update(vars(options), rank=its_rank, size=its_size, store=type(store).__name__)
        return dist.ProcessGroupGloo(store, its_rank, its_size, timeout=options._timeout)

    make.Options = Options  # type: ignore[attr-defined]
    with (
        gpus(None),
        mock.patch.object(dist, "ProcessGroupNCCL", make, create=True),
        mock.patch.object(dist, "is_nccl_available", return_value=True),
    ):
        backend = dist.group.WORLD._get_backend(CUDA)  # type: ignore[union-attr]
    assert isinstance(backend, dist.ProcessGroupGloo)
    return given


def no_nccl(rank: int, size: int) -> str:
    with gpus("nccl"):
        try:
            dist.all_reduce(torch.ones(1, dtype=torch.float64))
        except ValueError as error:
            return str(error)
    return ""


def ends_after_a_failed_shutdown(rank: int, size: int) -> tuple[str, int, list[str]]:
    """The second backend's first shutdown fails: the caller's error, threads left, and the calls."""
    before = threading.active_count()
    group: Any = dist.group.WORLD.split_group(list(range(size)))  # type: ignore[union-attr]
    calls: list[str] = []

    def shutdown() -> None:
        calls.append("shutdown")
        if len(calls) == 1:
            raise RuntimeError("not now")

    group.cuda._inner = SimpleNamespace(shutdown=shutdown, _get_backend=lambda device: None)
    error_text = ""
    try:
        group.shutdown()
    except RuntimeError as error:
        error_text = str(error)
    left = threading.active_count() - before
    group.shutdown()
    group.shutdown()
    return error_text, left, calls


def older_torch(rank: int, size: int) -> list[str]:
    """Before torch 2.6 groups had none of these methods, NCCL's backend had them under other names, gloo's had none."""
    calls: list[str] = []

    class Backend:
        def _shutdown(self) -> None:
            calls.append("_shutdown")

        def _set_default_timeout(self, timeout: timedelta) -> None:
            calls.append("_set_default_timeout")

    for backend in (Backend(), object()):
        cuda = device_routing.CudaBackend(dist.group.WORLD, 0, None)  # type: ignore[arg-type]
        cuda._inner = SimpleNamespace(_get_backend=lambda device, backend=backend: backend)
        cuda.set_timeout(LIMIT)
        cuda.end(abort=False)
        assert not cuda.made
    return calls


def point_to_point_first(rank: int, size: int) -> str:
    """Ranks 0 and 1 send and receive without the others; then all run a collective, and the two try again."""
    error_text, buffer = "", torch.full((1,), float(rank), dtype=torch.float64)
    exchange = [dist.send, dist.recv]
    with gpus():
        if rank < 2:
            try:
                exchange[rank](buffer, 1 - rank)
            except ConfigError as error:
                error_text = str(error)
        dist.all_reduce(torch.zeros(1, dtype=torch.float64))
        if rank < 2:
            exchange[rank](buffer, 1 - rank)
            assert buffer.item() == 0
    return error_text
