"""Jobs of the backend's tests. Every function runs in each rank's own process, on a gradwire group."""

from __future__ import annotations

import gc
import logging
import os
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gradwire.backend.buffers import INLINE
from gradwire.backend.errors import CollectiveError
from gradwire.backend.process_group import GradwireGroup
from gradwire.backend.reduce import CHUNK, DIRECT
from gradwire.backend.shm_allreduce import SHARDED, SLOT

OPS = {name: getattr(dist.ReduceOp, name) for name in ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")}
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
# In float32: nothing, one element, inside the opening, beyond it, beyond the direct path, several chunks and a rest;
# around a share and around a slot of the shared memory.
SIZES = (0, 1, 1000, INLINE // 4 + 1, DIRECT // 4 + 3, CHUNK + 7, SHARDED // 4, SLOT // 4, SLOT // 4 + 1)
LIMIT = timedelta(seconds=60)


def over(rank: int, world_size: int, wire: str, port: int, job: Any, *args: Any) -> Any:
    """A job on a group whose wire is `wire`; a store is served at `port`."""
    os.environ["GRADWIRE_WIRE"] = wire
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=LIMIT)
    prefix = f"{wire}/{job.__name__}/{world_size}/{args}"
    try:
        dist.init_process_group(
            "gradwire", store=dist.PrefixStore(prefix, store), rank=rank, world_size=world_size, timeout=LIMIT
        )
        result = job(rank, world_size, *args)
        dist.destroy_process_group()
        return result
    finally:
        del os.environ["GRADWIRE_WIRE"]


def given(rank: int, count: int, dtype: torch.dtype) -> Tensor:
    """A rank's input: small whole numbers, so that every sum is exact in every type."""
    return ((torch.arange(count) * 7 + rank * 3) % 5 + 1).to(dtype)


def expected(op: str, world_size: int, count: int, dtype: torch.dtype) -> Tensor:
    rows = [given(rank, count, dtype) for rank in range(world_size)]
    total = rows[0].clone()
    for row in rows[1:]:
        if op in ("SUM", "AVG"):
            total = total + row
        elif op == "PRODUCT":
            total = total * row
        elif op in ("MIN", "MAX"):
            total = (torch.minimum if op == "MIN" else torch.maximum)(total, row)
        else:
            total = {"BAND": total & row, "BOR": total | row, "BXOR": total ^ row}[op]
    return total / world_size if op == "AVG" else total


def reduces(rank: int, world_size: int) -> None:
    for dtype in (*FLOATS, *INTEGERS):
        integers = not dtype.is_floating_point
        for op, torch_op in OPS.items():
            if (integers and op == "AVG") or (not integers and op in ("BAND", "BOR", "BXOR")):
                continue
            tensor = given(rank, 999, dtype)
            dist.all_reduce(tensor, torch_op)
            torch.testing.assert_close(tensor, expected(op, world_size, 999, dtype))
    for count in SIZES:
        for dtype in (torch.float32, torch.bfloat16, torch.int8):
            tensor = given(rank, count, dtype)
            dist.all_reduce(tensor)
            assert torch.equal(tensor, expected("SUM", world_size, count, dtype)), count
        for root in range(world_size):
            tensor = given(rank, count, torch.float32)
            dist.reduce(tensor, root)
            wanted = (
                expected("SUM", world_size, count, torch.float32) if rank == root else given(rank, count, torch.float32)
            )
            assert torch.equal(tensor, wanted), (count, root)
        output = torch.empty(count)
        dist.reduce_scatter(output, [given(rank + shard, count, torch.float32) for shard in range(world_size)])
        assert torch.equal(output, sum(given(other + rank, count, torch.float32) for other in range(world_size)))


def moves(rank: int, world_size: int) -> None:
    for count in SIZES:
        mine, everyone = given(rank, count, torch.float32), [given(r, count, torch.float32) for r in range(world_size)]
        outputs = [torch.empty(count) for _ in range(world_size)]
        dist.all_gather(outputs, mine)
        assert all(map(torch.equal, outputs, everyone))
        outputs = [torch.empty(count) for _ in range(world_size)]
        dist.all_to_all(outputs, [mine + r for r in range(world_size)])
        assert all(torch.equal(output, row + rank) for output, row in zip(outputs, everyone, strict=True))
        for root in range(world_size):
            tensor = mine.clone()
            dist.broadcast(tensor, root)
            assert torch.equal(tensor, everyone[root])
            outputs = [torch.empty(count) for _ in range(world_size)]
            dist.gather(mine, outputs if rank == root else None, root)
            assert rank != root or all(map(torch.equal, outputs, everyone))
            tensor = torch.empty(count)
            dist.scatter(tensor, everyone if rank == root else None, root)
            assert torch.equal(tensor, mine)
    dist.barrier()


def in_place(rank: int, world_size: int) -> None:
    """Outputs that are part of the inputs or inputs that are part of the outputs: where they belong, and elsewhere."""
    ranks = range(world_size)
    for count in (2, INLINE, DIRECT + 3):
        everyone = torch.stack([torch.stack([given(7 * r + s, count, torch.float32) for s in ranks]) for r in ranks])
        summed, turned = everyone[:, rank].sum(0), everyone[:, rank]
        for shift in (0, 1):
            index = (rank + shift) % world_size
            gathered = torch.stack([everyone[r, (r + shift) % world_size] for r in ranks])
            rows = everyone[rank].clone()
            dist.reduce_scatter_tensor(rows[index], rows.view(-1))
            assert torch.equal(rows[index], summed), (count, shift)
            rows = everyone[rank].clone()
            dist.reduce_scatter(rows[index], list(rows))
            assert torch.equal(rows[index], summed), (count, shift)
            rows = everyone[rank].clone()
            dist.all_gather_into_tensor(rows.view(-1), rows[index])
            assert torch.equal(rows, gathered), (count, shift)
            rows = everyone[rank].clone()
            dist.gather(rows[index], list(rows) if rank == 0 else None, 0)
            assert torch.equal(rows, gathered if rank == 0 else everyone[rank]), (count, shift)
            rows = everyone[rank].clone()
            dist.scatter(rows[index], list(rows) if rank == 0 else None, 0)
            assert torch.equal(rows[index], everyone[0, rank]), (count, shift)
        rows = everyone[rank].clone()
        dist.all_to_all_single(rows, rows)
        assert torch.equal(rows, turned), count
        rows = everyone[rank].clone()
        dist.all_to_all([*rows][::-1], [*rows])
        assert torch.equal(rows.flip(0), turned), count


def coalesced(rank: int, world_size: int) -> None:
    """Torch's coalescing window, whose work is done when all its operations are. The root is late."""
    root = world_size - 1
    peers = (rank + 1) % world_size, (rank - 1) % world_size
    for futures in (False, True):
        sent, received = torch.full((INLINE,), float(rank)), torch.zeros(3)
        if rank == root:
            time.sleep(0.3)
        with dist.distributed_c10d._coalescing_manager(device=torch.device("cpu"), async_ops=True) as window:
            dist.broadcast(sent, root, async_op=True)
            dist.isend(torch.full((3,), float(rank)), peers[0])
            dist.irecv(received, peers[1])
        (work,) = window.works
        if futures:
            work.get_future().wait()
        else:
            work.wait()
        assert (sent == root).all()
        assert (received == peers[1]).all()
        sums = [torch.ones(2), torch.ones(INLINE)]
        with dist.distributed_c10d._coalescing_manager(device=torch.device("cpu"), async_ops=True) as window:
            for tensor in sums:
                dist.all_reduce(tensor)
        window.wait()
        assert all((tensor == world_size).all() for tensor in sums)
    with dist.distributed_c10d._coalescing_manager(device=torch.device("cpu"), async_ops=True) as window:
        pass
    assert window.works[0].get_future().wait() == []


def uneven_all_to_all(rank: int, world_size: int) -> None:
    """Rank s sends s + r + 1 rows to rank r."""
    sizes = [rank + other + 1 for other in range(world_size)]
    source = torch.cat([torch.full((rows, 2), 10.0 * rank + other) for other, rows in enumerate(sizes)])
    output = torch.empty(sum(sizes), 2)
    dist.all_to_all_single(output, source, sizes, sizes)
    assert torch.equal(output, torch.cat([torch.full((n, 2), 10.0 * other + rank) for other, n in enumerate(sizes)]))


def same_bits(rank: int, world_size: int, count: int) -> Tensor:
    """Random floats, whose sum depends on the order: every rank must hold the same bits."""
    tensor = torch.randn(count, generator=torch.Generator().manual_seed(rank)) * 10.0**rank
    dist.all_reduce(tensor)
    return tensor


def strided_tensors(rank: int, world_size: int) -> None:
    tensor = torch.zeros(6, 8)[:, ::2]
    tensor += rank
    dist.all_reduce(tensor)
    assert (tensor == sum(range(world_size))).all()
    complexes = torch.full((5,), complex(rank, 1))
    dist.all_reduce(complexes)
    assert (complexes == complex(sum(range(world_size)), world_size)).all()


def sparse_sum(rank: int, world_size: int) -> None:
    tensor = torch.sparse_coo_tensor([[rank, 9]], torch.tensor([[1.0, 2.0], [3.0, 4.0]]), (10, 2))
    dist.all_reduce(tensor)
    dense = torch.zeros(10, 2)
    dense[:world_size] = torch.tensor([1.0, 2.0])
    dense[9] += world_size * torch.tensor([3.0, 4.0])
    assert torch.equal(tensor.to_dense(), dense)


def sparse_sum_with_nothing(rank: int, world_size: int) -> None:
    """Ranks without entries, of a kind with dense dimensions and of one without."""
    for holders in ([], [0], [world_size - 1]):
        for entry, shape in ((torch.tensor([[1.0, 2.0]]), (4, 5, 2)), (torch.tensor([3.0]), (4, 5))):
            mine = int(rank in holders)
            tensor = torch.sparse_coo_tensor(torch.full((2, mine), 3), entry[:mine], shape)
            dist.all_reduce(tensor)
            dense = torch.zeros(shape)
            dense[3, 3] = len(holders) * entry[0]
            assert torch.equal(tensor.to_dense(), dense)


def another_dtype(rank: int, world_size: int, count: int) -> str:
    if rank == 0:
        dist.send(torch.ones(count, dtype=torch.int32), 1)
        return error_of(dist.barrier)
    error = error_of(dist.irecv, torch.empty(count), 0)
    dist.barrier()
    return error


def a_rank_far_ahead(rank: int, world_size: int, count: int) -> None:
    """Rank 1 calls first and then blocks its threads; rank 0 ends the sum and makes calls that it need not wait for."""
    total, numbers = torch.ones(10), torch.randperm(3_000_000).tolist()
    dist.barrier()
    if rank == 0:
        time.sleep(0.2)
    work = dist.all_reduce(total, async_op=True)
    if rank == 1:
        numbers.sort()  # lets no other thread of this process run
    for number in range(count):
        tensor = torch.full((2,), float(number if rank == 0 else -1))
        dist.broadcast(tensor, 0)
        assert (tensor == number).all()
    work.wait()
    assert (total == world_size).all()


def many_at_once(rank: int, world_size: int) -> None:
    """More than a window of operations, large and small, waited for in any order."""
    counts = [(index * 37_777) % 300_000 for index in range(40)]
    tensors = [given(rank, count, torch.float64) for count in counts]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    futures = [work.get_future() for work in works]
    for index in reversed(range(40)):
        works[index].wait()
        assert torch.equal(tensors[index], expected("SUM", world_size, counts[index], torch.float64))
        assert torch.equal(futures[index].wait()[0], tensors[index])


def sums_inside_callbacks(rank: int, world_size: int, hidden: bool) -> list[int]:
    """Callbacks that wait for another sum of the same group, started inside of them or, with `hidden`, before."""
    order: list[int] = []
    results = []
    for turn in range(3):
        first, second = torch.full((5,), 1.0), torch.full((5,), 2.0)
        begun = [dist.all_reduce(one, async_op=True).get_future() for one in (first, second)] if hidden else []

        def nested(_: Any, second: Tensor = second, begun: Any = begun, turn: int = turn) -> Tensor:
            order.append(turn)
            future = begun[1] if begun else dist.all_reduce(second, async_op=True).get_future()
            return future.wait()[0]  # type: ignore[no-any-return]

        future = begun[0] if begun else dist.all_reduce(first, async_op=True).get_future()
        results.append(future.then(nested).then(lambda done: done.value() * 10))
        if not hidden:
            results[-1].wait()  # otherwise sums of callbacks and of this thread would race, on any backend
    assert all((result.wait() == 20.0 * world_size).all() for result in results)
    return order


def receive_callback(rank: int, world_size: int) -> bool:
    """A receive's callback that waits for the thread that waits for the receive."""
    buffer, waited = torch.zeros(3), threading.Event()
    if rank == 1:
        time.sleep(0.2)
        dist.send(buffer + 1, 0)
        return True
    work = dist.irecv(buffer, 1)
    assert work is not None
    future = work.get_future().then(lambda _: waited.wait(20))
    work.wait()
    waited.set()
    return bool(future.wait())


def late_errors(rank: int, world_size: int) -> list[str]:
    """The errors of a failed operation's future, also inside a callback."""
    group = dist.new_group(range(world_size), timeout=timedelta(seconds=1))
    if rank == world_size - 1:
        time.sleep(2.5)
        return []
    future = dist.all_reduce(torch.ones(3), group=group, async_op=True).get_future()
    errors = []
    for one in (future, future.then(lambda done: done.value())):
        try:
            one.wait()
        except RuntimeError as error:  # torch's, around gradwire's
            errors.append(str(error))
    return errors


def power_sgd(rank: int, world_size: int, alike: bool) -> Tensor:
    """Torch's hook, which waits for two more sums inside the callback of the first; the weights at the end.

    Ranks have different data or, with `alike`, the same."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as hook

    torch.manual_seed(1)
    model = DistributedDataParallel(Net())
    state = hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
    model.register_comm_hook(state, hook.powerSGD_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(100 + (0 if alike else rank))
    for _ in range(6):
        loss = model(torch.randn(8, 20, generator=generator)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def two_groups_in_two_threads(rank: int, world_size: int) -> None:
    groups = [dist.new_group(range(world_size)) for _ in range(2)]
    wrong: list[object] = []

    def use(group: Any, factor: int) -> None:
        for turn in range(30):
            tensor = torch.full((turn * 500,), float(rank * factor))
            dist.all_reduce(tensor, group=group)
            if not (tensor == factor * sum(range(world_size))).all():
                wrong.append((factor, turn))

    threads = [threading.Thread(target=use, args=(group, factor + 1)) for factor, group in enumerate(groups)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong


def tagged_messages(rank: int, world_size: int) -> list[int]:
    """All ranks send to rank 0, with tags out of order and received from any source, small and large."""
    if rank:
        for tag, count in ((2, 10), (1, INLINE), (3, 20)):
            dist.send(torch.full((count,), float(rank * 10 + tag)), 0, tag=tag)
        dist.barrier()  # what a leaving rank sent is lost where no receive was posted
        return []
    for peer in range(1, world_size):
        large = torch.empty(INLINE)
        dist.recv(large, peer, tag=1)
        assert (large == peer * 10 + 1).all()
    sources = []
    for _ in range(1, world_size):
        buffer = torch.empty(10)
        source = dist.recv(buffer, tag=2)
        assert (buffer == source * 10 + 2).all()
        sources.append(source)
    for peer in range(1, world_size):
        buffer = torch.empty(20)
        dist.irecv(buffer, peer, tag=3).wait()
        assert (buffer == peer * 10 + 3).all()
    dist.barrier()
    return sorted(sources)


def error_of(call: Any, *args: Any, **kwargs: Any) -> str:
    try:
        work = call(*args, **kwargs)
        if work is not None:
            work.wait()
    except CollectiveError as error:
        return str(error)
    return ""


def disagreement(rank: int, world_size: int, kind: str) -> str:
    tensor = torch.ones(100)
    if kind == "operation":
        return error_of(dist.broadcast, tensor, 0) if rank == 1 else error_of(dist.all_reduce, tensor)
    if kind == "dtype":
        return error_of(dist.all_reduce, tensor.double() if rank == 1 else tensor)
    if kind == "count":
        return error_of(dist.all_reduce, torch.ones(101 if rank == 1 else 100))
    if kind == "one call more":
        if rank == 1:
            dist.broadcast(tensor, 1, async_op=True)
        return error_of(dist.all_reduce, tensor, async_op=True)
    if kind == "large count":
        return error_of(dist.all_reduce, torch.ones(CHUNK + (rank == 1)))
    return error_of(dist.all_reduce, tensor, dist.ReduceOp.MAX if rank == 1 else dist.ReduceOp.SUM, async_op=True)


def absent_rank(rank: int, world_size: int, asynchronous: bool) -> tuple[str, float]:
    """The last rank does not call; the others raise soon after the timeout."""
    group = dist.new_group(range(world_size), timeout=timedelta(seconds=1))
    begun = time.monotonic()
    if rank == world_size - 1:
        time.sleep(3.5)
        return error_of(dist.all_reduce, torch.ones(3), group=group), 0.0
    return error_of(dist.all_reduce, torch.ones(3), group=group, async_op=asynchronous), time.monotonic() - begun


def lost_rank(rank: int, world_size: int) -> str:
    """The last rank's process ends in the middle of a collective."""
    dist.all_reduce(torch.ones(1))
    if rank == world_size - 1:
        os._exit(17)
    return error_of(dist.all_reduce, torch.ones(CHUNK))


def gone_from_sums(rank: int, world_size: int) -> tuple[str, float]:
    """The last rank leaves in good order while the others sum."""
    group = dist.new_group(range(world_size), timeout=timedelta(seconds=30))
    dist.all_reduce(torch.ones(1), group=group)
    begun = time.monotonic()
    if rank == world_size - 1:
        time.sleep(0.3)
        dist.destroy_process_group()
        return "", 0.0
    return error_of(dist.all_reduce, torch.ones(5), group=group), time.monotonic() - begun


def logged(rank: int, world_size: int, port: int) -> list[str]:
    """What is logged at INFO while a group and a sub-group are made."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("gradwire")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        over(rank, world_size, "auto", port, _sub_group)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
    return lines


def _sub_group(rank: int, world_size: int) -> None:
    dist.barrier(dist.new_group(range(world_size)))


def kept_group(rank: int, world_size: int, folder: str) -> bool:
    """A group that is still referenced when its store's file is gone."""
    method = f"file://{folder}/store"
    dist.init_process_group("gradwire", init_method=method, rank=rank, world_size=world_size, timeout=LIMIT)
    kept = dist.group.WORLD
    dist.barrier()
    dist.destroy_process_group()
    gc.collect()
    Path(folder, "store").unlink(missing_ok=True)
    del kept
    return gc.collect() >= 0


def aborted(rank: int, world_size: int) -> str:
    group = dist.new_group(range(world_size), timeout=timedelta(seconds=60))
    if rank == 0:
        time.sleep(0.5)
        group.abort()
        return "aborted"
    return error_of(dist.all_reduce, torch.ones(3), group=group)


def monitored_barriers(rank: int, world_size: int) -> tuple[str, str]:
    first = error_of(dist.monitored_barrier, timeout=timedelta(seconds=30))
    if rank == world_size - 1:
        time.sleep(2)
        return first, ""
    group: Any = dist.group.WORLD
    return first, error_of(group.monitored_barrier, timedelta(seconds=1), wait_all_ranks=True)


def cycles(rank: int, world_size: int, folder: str, count: int) -> list[tuple[int, int]]:
    """Groups made and destroyed repeatedly; the threads and sockets left after each."""
    left = []
    for turn in range(count):
        dist.init_process_group("gradwire", init_method=f"file://{folder}/{turn}", rank=rank, world_size=world_size,
                                timeout=timedelta(seconds=30))  # fmt: skip
        group = dist.new_group([0, world_size - 1])
        tensor = torch.ones(10)
        dist.all_reduce(tensor, async_op=True).get_future().wait()
        assert (tensor == world_size).all()
        if rank in (0, world_size - 1):
            dist.barrier(group)
        dist.destroy_process_group()
        left.append(_counted())
    return left


def dropped(rank: int, world_size: int, port: int) -> list[tuple[int, int]]:
    """Groups that torch destroys without calling their `shutdown`, as it did before 2.6; what is left after each."""
    left = []
    shut_down, GradwireGroup.shutdown = GradwireGroup.shutdown, lambda self: None  # type: ignore[method-assign]
    try:
        for turn in range(4):
            over(rank, world_size, "auto", port, _sum, turn)
            gc.collect()
            left.append(_counted())
    finally:
        GradwireGroup.shutdown = shut_down  # type: ignore[method-assign]
    return left


def _sum(rank: int, world_size: int, turn: int) -> None:
    tensor = torch.ones(10)
    dist.all_reduce(tensor, async_op=True).wait()
    assert (tensor == world_size).all()
    dist.barrier()


def _counted() -> tuple[int, int]:
    """Threads and sockets of this process once the counts are stable: a joined thread is listed a moment longer."""
    seen = [_count(), _count()]
    while len(seen) < 40 and len({*seen[-3:]}) > 1:
        time.sleep(0.02)
        seen.append(_count())
    return seen[-1]


def _count() -> tuple[int, int]:
    tasks = len(os.listdir("/proc/self/task"))
    sockets = 0
    for entry in os.listdir("/proc/self/fd"):
        try:
            sockets += "socket" in os.readlink(f"/proc/self/fd/{entry}")
        except OSError:
            continue
    return tasks, sockets


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)  # type: ignore[no-any-return]


def train(rank: int, world_size: int, level: str | None) -> Tensor:
    """Some steps of DDP; the weights at the end. With a level, gradwire's hook synchronises over this same group."""
    import gradwire

    torch.manual_seed(1)
    model = DistributedDataParallel(Net())
    handle = gradwire.attach(model, level) if level else None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(100 + rank)
    for _ in range(6):
        loss = model(torch.randn(8, 20, generator=generator)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if handle is not None:
        handle.close()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
