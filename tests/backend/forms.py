"""Every form in which torch's bindings let a group's methods be called, for a comparison of gradwire with gloo."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

LIMIT = timedelta(seconds=30)
MAX = dist.ReduceOp.MAX


def given(rank: int, count: int = 4) -> Tensor:
    return torch.arange(count, dtype=torch.float32) + 10 * rank


def rows(size: int, count: int = 4) -> list[Tensor]:
    return [torch.zeros(count) for _ in range(size)]


def forms(pg: Any, rank: int, size: int) -> dict[str, Callable[[], tuple[Any, Any]]]:
    """Calls by name. Each returns the work and what it writes to; None where that is not defined on this rank."""

    def of(call: Callable[[Any], Any], target: Any, defined: bool = True) -> tuple[Any, Any]:
        return call(target), target if defined else None

    x = lambda: given(rank)  # noqa: E731
    each = lambda: [given(rank) for _ in range(size)]  # noqa: E731
    return {
        "allreduce": lambda: of(lambda t: pg.allreduce([t]), x()),
        "allreduce, bare": lambda: of(pg.allreduce, x()),
        "allreduce, bare, operator": lambda: of(lambda t: pg.allreduce(t, MAX, LIMIT), x()),
        "allreduce, named": lambda: of(lambda t: pg.allreduce([t], op=MAX, timeout=LIMIT), x()),
        "allreduce_coalesced": lambda: of(pg.allreduce_coalesced, [x(), x()]),
        "broadcast": lambda: of(lambda t: pg.broadcast([t]), x()),
        "broadcast, bare": lambda: of(lambda t: pg.broadcast(t, 1), x()),
        "broadcast, named": lambda: of(lambda t: pg.broadcast(t, root=1, timeout=LIMIT), x()),
        "reduce": lambda: of(lambda t: pg.reduce([t]), x(), rank == 0),
        "reduce, bare": lambda: of(lambda t: pg.reduce(t, 1, MAX), x(), rank == 1),
        "allgather": lambda: of(lambda o: pg.allgather([o], [x()]), rows(size)),
        "allgather, bare": lambda: of(lambda o: pg.allgather(o, x()), rows(size)),
        "allgather, named": lambda: of(lambda o: pg.allgather(output_tensors=[o], input_tensors=[x()]), rows(size)),
        "allgather_coalesced": lambda: of(
            lambda o: pg.allgather_coalesced(o, [x(), x()]), [rows(2) for _ in range(size)]
        ),
        "all_gather_single": lambda: of(lambda o: pg.all_gather_single(o, x()), torch.zeros(4 * size)),
        "_allgather_base": lambda: of(lambda o: pg._allgather_base(o, x()), torch.zeros(4 * size)),
        "all_gather_single_coalesced": lambda: of(
            lambda o: pg.all_gather_single_coalesced(o, [x(), x()]), rows(2, 4 * size)
        ),
        "gather": lambda: of(lambda o: pg.gather([o] if rank == 0 else [], [x()]), rows(size)),
        "gather, bare": lambda: of(lambda o: pg.gather(o if rank == 1 else [], x(), 1), rows(size)),
        "scatter": lambda: of(lambda o: pg.scatter([o], [each()] if rank == 0 else []), torch.zeros(4)),
        "scatter, bare": lambda: of(lambda o: pg.scatter(o, each() if rank == 1 else [], 1), torch.zeros(4)),
        "reduce_scatter": lambda: of(lambda o: pg.reduce_scatter([o], [each()]), torch.zeros(4)),
        "reduce_scatter, bare": lambda: of(lambda o: pg.reduce_scatter(o, each(), MAX), torch.zeros(4)),
        "reduce_scatter_single": lambda: of(
            lambda o: pg.reduce_scatter_single(o, given(rank, 4 * size)), torch.zeros(4)
        ),
        "_reduce_scatter_base": lambda: of(lambda o: pg._reduce_scatter_base(o, given(rank, 4 * size)), torch.zeros(4)),
        "reduce_scatter_single_coalesced": lambda: of(
            lambda o: pg.reduce_scatter_single_coalesced(o, [given(rank, 4 * size)] * 2), rows(2)
        ),
        "alltoall": lambda: of(lambda o: pg.alltoall(o, each()), rows(size)),
        "all_to_all_single": lambda: of(lambda o: pg.all_to_all_single(o, given(rank, size), [], []), rows(1, size)[0]),
        "all_to_all_single, timeout": lambda: of(
            lambda o: pg.all_to_all_single(o, given(rank, size), [], [], LIMIT), rows(1, size)[0]
        ),
        "barrier": lambda: (pg.barrier(), None),
        "barrier, timeout": lambda: (pg.barrier(LIMIT), None),
        "barrier, named": lambda: (pg.barrier(timeout=LIMIT), None),
    }


def results(rank: int, size: int, members: list[int]) -> dict[str, Any]:
    """What every form writes, on a group of `members`."""
    group: Any = dist.new_group(members)
    if rank not in members:
        return {}
    answers = {}
    for name, call in forms(group, group.rank(), group.size()).items():
        work, target = call()
        work.wait()
        answers[name] = _plain(target)
    return answers


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.tolist()
    return [_plain(one) for one in value] if isinstance(value, list) else value


def looked_up(rank: int, size: int) -> dict[str, Any]:
    """What torch asks of a group when it looks for its devices, backends and store."""
    from torch.distributed import distributed_c10d as c10d

    pg: Any = dist.group.WORLD
    backend = pg._get_backend(torch.device("cpu"))
    if rank == 0:
        pg.get_group_store().set("key", "told")
    return {
        "cpu": torch.device("cpu") in pg._device_types,
        "backend": (backend.rank(), backend.size(), backend.supports_splitting, backend.supports_time_estimate),
        "alloc": backend.supports_tensor_alloc(torch.device("cpu")),
        "default device": c10d._get_pg_default_device(pg).type,
        "object device": c10d._get_object_coll_device(pg),
        "store": pg.get_group_store().get("key"),
        "uid": c10d._get_process_group_uid(pg),
        "hooks": pg._has_hooks(),
        "sequence": (pg._set_sequence_number_for_group(), pg._get_sequence_number_for_group() >= 0),
    }


def no_such_device(rank: int, size: int) -> str:
    try:
        dist.group.WORLD._get_backend(torch.device("meta"))  # type: ignore[union-attr]
    except RuntimeError as error:  # what torch's own callers catch
        return str(error)
    return ""


def parts(rank: int, size: int) -> list[Any]:
    """`split_group` of the group: all in reverse, the first two, and halves under names of their own and of torch's."""
    pg: Any = dist.group.WORLD
    halves = [0, 1] if rank < 2 else list(range(2, size))
    answers: list[Any] = []
    for ranks, options in (
        (list(range(size))[::-1], {"group_name": "all", "group_desc": "everyone", "timeout": LIMIT}),
        ([0, 1], {}),
        (halves, {"group_name": f"half{halves[0]}"}),
    ):
        part = pg.split_group(ranks, **options)
        if part is None:
            answers.append(None)
            continue
        tensor = given(rank)
        part.allreduce([tensor]).wait()
        answers.append((tensor.tolist(), part.rank(), part.size(), part.group_name))
    return answers


def part_of_a_part(rank: int, size: int) -> list[float] | None:
    """The last two ranks of the last three. Gloo's process crashes here."""
    pg: Any = dist.group.WORLD
    outer = pg.split_group(range(1, size))
    inner = outer and outer.split_group(range(1, size - 1))
    if inner is None:
        return None
    tensor = given(rank)
    inner.allreduce([tensor]).wait()
    return tensor.tolist()  # type: ignore[no-any-return]


def split_by_torch(rank: int, size: int) -> list[Any]:
    """`dist.split_group` refuses to run without an accelerator; here the CPU is used as one."""
    from unittest import mock

    pg: Any = dist.group.WORLD
    pg.bound_device_id = torch.device("cpu:0")
    with (
        mock.patch("torch.accelerator.is_available", return_value=True),
        mock.patch("torch.accelerator.current_accelerator", return_value=torch.device("cpu")),
    ):
        part: Any = dist.split_group(split_ranks=[[0, 2], [1, 3]])
    pg.bound_device_id = None
    tensor = given(rank)
    dist.all_reduce(tensor, group=part)
    members = dist.get_process_group_ranks(part)
    dist.destroy_process_group(part)
    return [tensor.tolist(), members]


def misfits(rank: int, size: int) -> list[str]:
    """Calls whose tensors do not fit. All are refused before anything is sent, so the group stays usable."""
    pg: Any = dist.group.WORLD
    doubles = torch.ones(4, dtype=torch.float64)
    calls: dict[str, Callable[[], Any]] = {
        "invalid tensor type": lambda: pg.all_gather_single(torch.zeros(4 * size), doubles),
        "all_gather: output tensor: invalid tensor size": lambda: pg.all_gather_single(torch.zeros(9), torch.zeros(4)),
        "reduce_scatter: input tensor: invalid tensor type": lambda: pg.reduce_scatter_single(
            torch.zeros(4), doubles.repeat(size)
        ),
        "reduce_scatter: input tensor: invalid tensor size": lambda: pg.reduce_scatter_single(
            torch.zeros(4), torch.zeros(9)
        ),
        "all_gather: tensor_list: needs": lambda: pg.allgather([rows(size + 1)], [torch.zeros(4)]),
        "all_gather: tensor_list: invalid tensor type": lambda: pg.allgather([rows(size)], [doubles]),
        "invalid tensor size": lambda: pg.allgather([rows(size, 5)], [torch.zeros(4)]),
        "reduce_scatter: input_list: invalid tensor size": lambda: pg.reduce_scatter([torch.zeros(5)], [rows(size)]),
        "all_to_all: invalid tensor type": lambda: pg.alltoall(rows(size), [doubles] * size),
        "split sizes": lambda: pg.all_to_all_single(torch.zeros(4), torch.zeros(4), [1] * size, [3] * size),
        "broadcast: invalid root rank": lambda: pg.broadcast(torch.zeros(1), 9),
        "reduce: invalid root rank": lambda: pg.reduce(torch.zeros(1), -1),
        "gather: invalid root rank": lambda: pg.gather([], torch.zeros(1), size),
        "scatter: invalid root rank": lambda: pg.scatter(torch.zeros(1), [], size),
    }
    wrong = []
    for words, call in calls.items():
        try:
            call()
        except RuntimeError as error:  # as gloo's is
            if words not in str(error):
                wrong.append(f"{words}: {error}")
        else:
            wrong.append(f"{words}: accepted")
    tensor = given(rank)
    dist.all_reduce(tensor)
    return wrong


def strided(rank: int, size: int) -> list[str]:
    """Collectives whose tensors are not contiguous and that differ from the same on contiguous ones."""
    layouts: dict[str, Callable[[Tensor], Tensor]] = {
        "every other": lambda tensor: tensor.new_zeros(3, 8)[:, ::2].copy_(tensor),
        "transposed": lambda tensor: tensor.t().contiguous().t(),
    }
    plain = _on_layout(rank, size, torch.clone)
    return [
        f"{name}, {kind}"
        for kind, layout in layouts.items()
        for name, answer in _on_layout(rank, size, layout).items()
        if answer != plain[name]
    ]


def _on_layout(rank: int, size: int, layout: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    own = lambda: layout(torch.arange(12.0).view(3, 4) + 100 * rank)  # noqa: E731
    output = lambda: layout(torch.zeros(3, 4))  # noqa: E731
    summed, sent, reduced, scattered, shared = own(), own(), own(), output(), output()
    gathered, collected, turned = ([output() for _ in range(size)] for _ in range(3))
    dist.all_reduce(summed)
    dist.broadcast(sent, 1)
    dist.reduce(reduced, 0)
    dist.all_gather(gathered, own())
    dist.gather(own(), collected if rank == 0 else None, 0)
    dist.scatter(scattered, [own() for _ in range(size)] if rank == 0 else None, 0)
    dist.reduce_scatter(shared, [own() for _ in range(size)])
    dist.all_to_all(turned, [own() + r for r in range(size)])
    received = output()
    if rank == 0:
        dist.send(own(), 1)
    elif rank == 1:
        dist.recv(received, 0)
    answers = {
        "all_reduce": summed, "broadcast": sent, "reduce": reduced if rank == 0 else None, "all_gather": gathered,
        "gather": collected, "scatter": scattered, "reduce_scatter": shared, "all_to_all": turned, "recv": received,
    }  # fmt: skip
    return {name: _plain(answer) for name, answer in answers.items()}


def late(rank: int, size: int, wait_all: bool) -> str:
    """`dist.monitored_barrier`, which the last rank does not reach in time."""
    dist.monitored_barrier(timeout=LIMIT)
    if rank == size - 1:
        dist.barrier()
        return ""
    try:
        dist.monitored_barrier(timeout=timedelta(seconds=1), wait_all_ranks=wait_all)
    except RuntimeError as error:
        dist.barrier()  # the group stays usable
        return str(error)
    return "passed"


def not_a_member(rank: int, size: int) -> str:
    group: Any = dist.new_group([0, 1])
    dist.monitored_barrier(group, timeout=LIMIT)
    return "passed"
