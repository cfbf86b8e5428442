"""What torch builds on a process group, each as one job for four ranks: meshes, DTensor, FSDP2, checkpoints, functional
and object collectives. Every job asserts its own result, so that it may run on any backend."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

TOTAL = 6.0  # 0 + 1 + 2 + 3


def mesh(rank: int, size: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh

    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("row", "column"))
    assert list(grid.get_coordinate() or ()) == [rank // 2, rank % 2]
    for name, partner in (("row", rank ^ 2), ("column", rank ^ 1)):
        tensor = torch.full((3,), float(rank))
        dist.all_reduce(tensor, group=grid[name].get_group())
        assert (tensor == rank + partner).all()
    flat = grid["row", "column"]._flatten("all")
    assert flat.size() == 4


def distributed_tensors(rank: int, size: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("row", "column"))
    whole = torch.arange(64.0).view(8, 8)
    sharded = distribute_tensor(whole, grid, [Shard(0), Shard(1)])
    assert sharded.to_local().shape == (4, 4)
    assert torch.equal(sharded.full_tensor(), whole)
    turned = sharded.redistribute(placements=[Shard(1), Replicate()])
    assert torch.equal(turned.full_tensor(), whole)
    product = sharded @ sharded
    torch.testing.assert_close(product.full_tensor(), whole @ whole)
    line = init_device_mesh("cpu", (4,))
    from torch.distributed.tensor import DTensor

    partial = DTensor.from_local(torch.full((4, 4), float(rank)), line, [Partial()])
    assert (partial.full_tensor() == TOTAL).all()
    assert (partial.redistribute(placements=[Shard(0)]).to_local() == TOTAL).all()


def tensor_parallel(rank: int, size: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.manual_seed(3)
    plain = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    inputs = torch.randn(4, 8)
    expected = plain(inputs)
    plan: Any = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    split = parallelize_module(plain, init_device_mesh("cpu", (4,)), plan)
    torch.testing.assert_close(split(inputs), expected)


def sharded_model(mesh_shape: tuple[int, ...]) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    names = ("replicate", "shard")[-len(mesh_shape) :]
    fully_shard(model, mesh=init_device_mesh("cpu", mesh_shape, mesh_dim_names=names))
    return model


def fsdp(rank: int, size: int) -> None:
    for shape in ((4,), (2, 2)):
        model = sharded_model(shape)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = torch.randn(5, 8, generator=torch.Generator().manual_seed(rank))
        model(data).square().mean().backward()
        optimizer.step()
        torch.manual_seed(0)
        plain = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        for other in range(size):
            data = torch.randn(5, 8, generator=torch.Generator().manual_seed(other))
            (plain(data).square().mean() / size).backward()
        torch.optim.SGD(plain.parameters(), lr=0.1).step()
        for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(ours.full_tensor(), theirs)  # type: ignore[attr-defined]


def checkpoints(rank: int, size: int, folder: str) -> None:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict

    model = sharded_model((4,))
    state = {"model": get_model_state_dict(model), "step": 7}
    kept = [parameter.full_tensor().clone() for parameter in model.parameters()]  # type: ignore[attr-defined]
    dcp.save(state, checkpoint_id=f"{folder}/plain")
    future: Any = dcp.async_save(state, checkpoint_id=f"{folder}/later")
    future.result()
    for name in ("plain", "later"):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        loaded = {"model": get_model_state_dict(model), "step": 0}
        dcp.load(loaded, checkpoint_id=f"{folder}/{name}")
        set_model_state_dict(model, loaded["model"])  # type: ignore[arg-type]
        assert loaded["step"] == 7
        for parameter, before in zip(model.parameters(), kept, strict=True):
            assert torch.equal(parameter.full_tensor(), before)  # type: ignore[attr-defined]


def whole_state(rank: int, size: int) -> None:
    """A full state dict, gathered on rank 0 and broadcast from it."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict

    model = sharded_model((4,))
    options = StateDictOptions(full_state_dict=True, cpu_offload=True, broadcast_from_rank0=True)
    full = get_model_state_dict(model, options=options)
    before = [parameter.full_tensor().clone() for parameter in model.parameters()]  # type: ignore[attr-defined]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    set_model_state_dict(model, full if rank == 0 else {}, options=options)
    for parameter, kept in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter.full_tensor(), kept)  # type: ignore[attr-defined]


def functional(rank: int, size: int) -> None:
    from torch.distributed import _functional_collectives as fc

    everyone = list(range(size))
    own = torch.full((4,), float(rank))

    def done(tensor: Tensor) -> Tensor:
        return fc.wait_tensor(tensor)

    assert (done(fc.all_reduce(own, "sum", everyone)) == TOTAL).all()
    assert (done(fc.all_reduce(own, "avg", everyone)) == TOTAL / size).all()
    gathered = torch.arange(4.0).repeat_interleave(4)
    assert torch.equal(done(fc.all_gather_tensor(own, 0, everyone)), gathered)
    assert torch.equal(done(fc.all_gather_tensor(own.view(2, 2), 1, everyone))[0], gathered.view(4, 4)[:, :2].flatten())
    assert (done(fc.reduce_scatter_tensor(own, "sum", 0, everyone)) == TOTAL).all()
    assert (done(fc.broadcast(own, 2, everyone)) == 2).all()
    assert torch.equal(done(fc.all_to_all_single(own, None, None, everyone)), torch.arange(4.0))
    assert all((done(one) == TOTAL).all() for one in fc.all_reduce_coalesced([own, own * 1], "sum", everyone))
    outputs = fc.all_gather_into_tensor_coalesced([own, own + 1], everyone)
    assert torch.equal(done(outputs[1]), gathered + 1)
    shares = fc.reduce_scatter_tensor_coalesced([own, own + 1], "sum", [0, 0], everyone)
    assert (done(shares[1]) == TOTAL + size).all()
    halves = fc.permute_tensor(own, [1, 2, 3, 0], everyone)
    assert (done(halves) == (rank - 1) % size).all()


def differentiable(rank: int, size: int) -> None:
    from torch.distributed.nn import functional as df

    world: Any = dist.group.WORLD  # its default is the group that was there when it was imported
    own = torch.full((4,), float(rank), requires_grad=True)
    df.all_reduce(own, group=world).sum().backward()
    assert (own.grad == size).all()
    own.grad = None
    torch.cat(list(df.all_gather(own, world))).sum().backward()
    assert (own.grad == size).all()
    own.grad = None
    df.reduce_scatter(torch.zeros(4), [own * 1.0 for _ in range(size)], group=world).sum().backward()
    assert (own.grad == size).all()
    own.grad = None
    df.all_to_all_single(torch.zeros(4), own, group=world).sum().backward()
    assert (own.grad == 1).all()
    own.grad = None
    df.broadcast(own, 1, world).sum().backward()
    assert own.grad is not None


def objects(rank: int, size: int) -> None:
    everything: list[Any] = [None] * size
    dist.all_gather_object(everything, {"rank": rank})
    assert everything == [{"rank": other} for other in range(size)]
    collected: list[Any] | None = [None] * size if rank == 1 else None
    dist.gather_object(("from", rank), collected, dst=1)
    assert rank != 1 or collected == [("from", other) for other in range(size)]
    values = [f"rank {rank}", rank]
    dist.broadcast_object_list(values, src=2)
    assert values == ["rank 2", 2]
    mine: list[Any] = [None]
    dist.scatter_object_list(mine, [f"for {other}" for other in range(size)] if rank == 0 else None, src=0)
    assert mine == [f"for {rank}"]
    if rank == 0:
        dist.send_object_list(["one", 2], dst=3)
    elif rank == 3:
        received: list[Any] = [None, None]
        dist.recv_object_list(received, src=0)
        assert received == ["one", 2]


def batched_p2p(rank: int, size: int) -> None:
    target, source = (rank + 1) % size, (rank - 1) % size
    buffer = torch.zeros(5)
    batch = [dist.P2POp(dist.irecv, buffer, source), dist.P2POp(dist.isend, torch.full((5,), float(rank)), target)]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    assert (buffer == source).all()


def coalescing(rank: int, size: int) -> None:
    from torch.distributed.distributed_c10d import _coalescing_manager

    with _coalescing_manager():
        sums = [torch.full((3,), float(rank)) for _ in range(3)]
        for tensor in sums:
            dist.all_reduce(tensor)
    assert all((tensor == TOTAL).all() for tensor in sums)
    outputs = [torch.zeros(4 * 3) for _ in range(2)]
    with _coalescing_manager(async_ops=True) as window:
        for output in outputs:
            dist.all_gather_into_tensor(output, torch.full((3,), float(rank)))
    window.wait()
    assert all(torch.equal(output, torch.arange(4.0).repeat_interleave(3)) for output in outputs)
    shares = [torch.zeros(3) for _ in range(2)]
    with _coalescing_manager(async_ops=True) as window:
        for share in shares:
            dist.reduce_scatter_tensor(share, torch.full((12,), float(rank)))
    window.wait()
    assert all((share == TOTAL).all() for share in shares)


def subgroups(rank: int, size: int) -> None:
    mine, groups = dist.new_subgroups(2)
    assert len(groups) == 2
    assert dist.get_process_group_ranks(mine) == [rank - rank % 2, rank - rank % 2 + 1]
    tensor = torch.full((2,), float(rank))
    dist.all_reduce(tensor, group=mine)
    assert (tensor == 2 * (rank - rank % 2) + 1).all()
    crossed, _ = dist.new_subgroups_by_enumeration([[0, 2], [1, 3]])
    dist.broadcast(tensor, group_src=1, group=crossed)
    assert (tensor == 5).all()
    alone: Any = dist.new_group([rank], use_local_synchronization=True, group_desc=f"alone {rank}")
    assert alone.group_desc == f"alone {rank}"
    dist.barrier(alone)


def compiled(rank: int, size: int) -> None:
    """Collectives inside a compiled function."""

    @torch.compile(backend="aot_eager", fullgraph=True)
    def step(tensor: Tensor) -> Tensor:
        dist.all_reduce(tensor)
        return tensor * 2

    assert (step(torch.full((3,), float(rank))) == 2 * TOTAL).all()


def older_wrappers(rank: int, size: int) -> None:
    """ZeRO's optimizer, model averaging, uneven inputs and FSDP1."""
    from torch.distributed.algorithms import Join
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(8, 4))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    with Join([model, optimizer]):
        for _ in range(rank + 1):
            model(torch.randn(2, 8)).sum().backward()
            optimizer.step()
    optimizer.consolidate_state_dict(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.distributed.fsdp import FullyShardedDataParallel

        sharded = FullyShardedDataParallel(nn.Linear(8, 4), device_id=torch.device("cpu"))
        sharded(torch.randn(2, 8)).sum().backward()
        state = FullyShardedDataParallel.optim_state_dict(sharded, torch.optim.Adam(sharded.parameters()))
    assert "param_groups" in state


JOBS = (
    mesh, distributed_tensors, tensor_parallel, fsdp, whole_state, functional, differentiable, objects, batched_p2p,
    coalescing, subgroups, compiled, older_wrappers,
)  # fmt: skip
