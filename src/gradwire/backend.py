"""The third door: `torch.distributed.init_process_group("gradwire")`.

Torch finds it through `entry.py`; no import is needed. `GradwireGroup` translates
torch's calls into operations of `collective/`: lists of tensors in, flat memory and a Call out. It holds no algorithm.
"""

# torch's stubs give these methods several signatures that no Python subclass can have, and miss the options.
# mypy: disable-error-code="override,assignment"

from __future__ import annotations

import atexit
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    BarrierOptions,
    BroadcastOptions,
    ReduceScatterOptions,
)

from gradwire.collective import move, reduce
from gradwire.collective.board import open_board
from gradwire.collective.call import Call
from gradwire.collective.engine import Engine
from gradwire.collective.flight import Flight, Steps
from gradwire.collective.meeting import SharedWire, convene
from gradwire.collective.named import NamedGroup
from gradwire.collective.operators import name_of
from gradwire.collective.point import Points
from gradwire.collective.rollcall import roll_call
from gradwire.collective.sparse import SparseSum
from gradwire.collective.staging import Staging
from gradwire.collective.tags import check_user_tag
from gradwire.collective.wires import open_wire
from gradwire.collective.work import Joined, Outputs, Work
from gradwire.errors import ConfigError

NAME = "gradwire"
_NO_TIMEOUT = timedelta(milliseconds=-1)


def create(options: Any, _: object = None) -> GradwireGroup:
    """A group of the ranks torch names: on the default group's wire when that is ours, else on one of its own."""
    rank, size = options.group_rank, options.group_size
    shared = _default_wire() if options.global_ranks_in_group else None
    if shared is None:
        shared = SharedWire(open_wire(options.store, rank, size, options.timeout.total_seconds()), options.store)
        members: Sequence[int] = range(size)
    else:
        members = options.global_ranks_in_group
    return GradwireGroup(shared, options, members)


def _default_wire() -> SharedWire | None:
    world = dist.group.WORLD
    return world.shared if isinstance(world, GradwireGroup) else None


class GradwireGroup(NamedGroup):
    """A process group over a wire. Method names and arguments are torch's, the old ones and those of 2.13."""

    BACKEND = NAME

    def __init__(self, shared: SharedWire, options: Any, members: Sequence[int]) -> None:
        super().__init__(options.group_rank, options.group_size, options.group_id or "")
        self.shared = shared
        self._timeout: timedelta = options.timeout
        self._circle = convene(shared, options.store, options.group_rank, members, options.timeout.total_seconds())
        board = open_board(self._circle, options.timeout.total_seconds())
        self._engine = Engine(self._circle, options.group_id or "default", board)
        self._points = Points(self._circle, options.timeout.total_seconds(), self._engine.callbacks)
        self._roll_calls = 0
        self._coalesced: list[Work] | None = None
        self._open = True
        # Threads and sockets must be gone before the interpreter is, also when nobody destroys the group.
        self._at_exit = _shut_down_at_exit(self)

    # Sums

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> dist.Work:
        opts = opts or AllreduceOptions()
        tensor = _single(tensors, "all_reduce")
        if tensor.layout != torch.strided:
            return self._sparse(tensor, opts)
        staging = Staging()
        flat = staging.write(tensor, read=True)
        call = Call("all_reduce", tensor.dtype, tensor.numel(), name_of(opts.reduceOp, tensor.dtype))
        return self._run(call, _bind(reduce.all_reduce, flat), tensors, opts, staging, flat)

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> dist.Work:
        opts = opts or AllreduceCoalescedOptions()
        if any(tensor.layout != torch.strided for tensor in tensors):
            raise ConfigError("all_reduce_coalesced: takes dense tensors only")
        works = []
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            alike = [tensor for tensor in tensors if tensor.dtype == dtype]
            flat = torch.cat([tensor.detach().reshape(-1).cpu() for tensor in alike])
            staging = _Spread(flat, alike)
            call = Call("all_reduce", dtype, flat.numel(), name_of(opts.reduceOp, dtype))
            works.append(self._run(call, _bind(reduce.all_reduce, flat), alike, opts, staging, flat))
        return works[0] if len(works) == 1 else Joined(works)

    def reduce(self, tensors: list[Tensor], opts: Any = None) -> dist.Work:
        tensor, staging = _single(tensors, "reduce"), Staging()
        mine = opts.rootRank == self.rank()
        flat = staging.write(tensor, read=True) if mine else staging.read(tensor)
        call = Call("reduce", tensor.dtype, tensor.numel(), name_of(opts.reduceOp, tensor.dtype), opts.rootRank)
        return self._run(call, lambda flight: reduce.reduce(flight, flat, opts.rootRank), tensors, opts, staging)

    def reduce_scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None) -> dist.Work:
        output, staging = _single(outputs, "reduce_scatter"), Staging()
        parts = [staging.read(part) for part in inputs[0]]
        _sized(parts, self.size(), output.numel(), "reduce_scatter: input_list")
        return self._reduce_scatter(parts, output, opts or ReduceScatterOptions(), staging)

    def reduce_scatter_single(self, output: Tensor, source: Tensor, opts: Any = None) -> dist.Work:
        staging = Staging()
        if source.numel() != output.numel() * self.size():
            raise ConfigError(
                f"reduce_scatter: input tensor must be the same size as output size times world size "
                f"({output.numel()} x {self.size()}), not {source.numel()}"
            )
        parts = list(staging.read(source).view(self.size(), -1))
        return self._reduce_scatter(parts, output, opts or ReduceScatterOptions(), staging)

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> dist.Work:
        return Joined([self.reduce_scatter_single(o, i, opts) for o, i in zip(outputs, inputs, strict=True)])  # type: ignore[misc]

    # Moves

    def broadcast(self, tensors: list[Tensor], opts: Any = None) -> dist.Work:
        opts = opts or BroadcastOptions()
        tensor, staging = _single(tensors, "broadcast"), Staging()
        root = opts.rootRank
        flat = staging.read(tensor) if root == self.rank() else staging.write(tensor)
        call = Call("broadcast", tensor.dtype, tensor.numel(), root=root)
        return self._run(call, lambda flight: move.broadcast(flight, flat, root), tensors, opts, staging)

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> dist.Work:
        own, staging = _single(inputs, "all_gather"), Staging()
        flats = [staging.write(tensor) for tensor in outputs[0]]
        _sized(flats, self.size(), None, "all_gather: tensor_list")
        return self._all_gather(staging.read(own), flats, outputs, opts or AllgatherOptions(), staging)

    def all_gather_single(self, output: Tensor, source: Tensor, opts: Any = None) -> dist.Work:
        staging = Staging()
        if output.numel() != source.numel() * self.size():
            raise ConfigError(
                f"all_gather: output tensor size must be equal to world_size times input tensor size "
                f"({self.size()} x {source.numel()}), not {output.numel()}"
            )
        flats = list(staging.write(output).view(self.size(), -1))
        return self._all_gather(staging.read(source), flats, [output], opts or AllgatherOptions(), staging)

    def all_gather_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> dist.Work:
        return Joined([self.all_gather_single(o, i, opts) for o, i in zip(outputs, inputs, strict=True)])  # type: ignore[misc]

    def allgather_coalesced(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> dist.Work:
        """`outputs[r][i]` becomes rank r's inputs[i]."""
        each = [[row[index] for row in outputs] for index in range(len(inputs))]
        return Joined([self.allgather([out], [own], opts) for out, own in zip(each, inputs, strict=True)])  # type: ignore[misc]

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> dist.Work:
        own, staging, root = _single(inputs, "gather"), Staging(), opts.rootRank
        flats = [staging.write(tensor) for tensor in outputs[0]] if self.rank() == root else []
        if self.rank() == root:
            _sized(flats, self.size(), own.numel(), "gather: gather_list")
        source = staging.read(own)
        call = Call("gather", own.dtype, own.numel(), root=root)
        return self._run(call, lambda flight: move.gather(flight, source, flats, root), outputs, opts, staging)

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None) -> dist.Work:
        output, staging, root = _single(outputs, "scatter"), Staging(), opts.rootRank
        flats = [staging.read(tensor) for tensor in inputs[0]] if self.rank() == root else []
        if self.rank() == root:
            _sized(flats, self.size(), output.numel(), "scatter: scatter_list")
        target = staging.write(output)
        call = Call("scatter", output.dtype, output.numel(), root=root)
        return self._run(call, lambda flight: move.scatter(flight, flats, target, root), outputs, opts, staging)

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> dist.Work:
        staging = Staging()
        sources, targets = [staging.read(t) for t in inputs], [staging.write(t) for t in outputs]
        _sized(sources, self.size(), None, "all_to_all: input_tensor_list")
        _sized(targets, self.size(), None, "all_to_all: output_tensor_list")
        return self._all_to_all(sources, targets, outputs, opts, staging)

    def all_to_all_single(
        self, output: Tensor, source: Tensor, output_splits: list[int], input_splits: list[int], opts: Any = None
    ) -> dist.Work:
        staging = Staging()
        sources = _split(staging.read(source), source, input_splits, self.size(), "input")
        targets = _split(staging.write(output), output, output_splits, self.size(), "output")
        return self._all_to_all(sources, targets, [output], opts, staging)

    def barrier(self, opts: Any = None) -> dist.Work:
        nothing = torch.empty(0, dtype=torch.uint8)
        opts = opts or BarrierOptions()
        return self._run(Call("barrier"), _bind(move.barrier, nothing), [], opts, Staging(), nothing)

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """A barrier that names who did not come. Fails without harming the group."""
        self._roll_calls += 1
        roll_call(self._circle, self._roll_calls, timeout or self._timeout, wait_all_ranks)

    # Point to point

    def send(self, tensors: list[Tensor], peer: int, tag: int = 0) -> dist.Work:
        flat = Staging().read(_single(tensors, "send"))
        return self._noted(self._points.send(flat, self._peer(peer), check_user_tag(tag)))

    def recv(self, tensors: list[Tensor], peer: int, tag: int = 0) -> dist.Work:
        staging = Staging()
        flat = staging.write(_single(tensors, "recv"))
        return self._noted(self._points.receive(flat, self._peer(peer), check_user_tag(tag), staging.settle))

    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> dist.Work:
        staging = Staging()
        flat = staging.write(_single(tensors, "recv"))
        return self._noted(self._points.receive(flat, None, check_user_tag(tag), staging.settle))

    # Coalescing windows of torch's own: operations are under way at once anyway, and waited for as one.

    def _start_coalescing(self, device: object = None) -> None:
        self._coalesced = []

    def _end_coalescing(self, device: object = None) -> dist.Work:
        works, self._coalesced = self._coalesced or [], None
        return Joined(works)

    # End

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout
        self._points.timeout = timeout.total_seconds()

    def _set_default_timeout(self, timeout: timedelta) -> None:
        self.set_timeout(timeout)

    def shutdown(self) -> None:
        """Finish what is under way, then leave the wire."""
        self._end(abort=False)

    def abort(self) -> None:
        """End everything under way with an error, here and on the other ranks."""
        self._end(abort=True)

    def __del__(self) -> None:
        # Torch before 2.6 drops a destroyed group without a word to it.
        self._end(abort=False)

    def _end(self, *, abort: bool) -> None:
        if not getattr(self, "_open", False):
            return
        self._open = False
        atexit.unregister(self._at_exit)
        self._engine.close(abort=abort)
        self._points.close()
        self._circle.close()
        self.shared.leave()

    # What the doors above have in common

    def _run(
        self, call: Call, algorithm: Callable[[Flight], Steps], outputs: Outputs, opts: Any, staging: Any,
        summed: Tensor | None = None,
    ) -> Work:  # fmt: skip
        if not self._open:
            raise ConfigError(f"{call.name}: this process group was destroyed")
        at_once = not getattr(opts, "asyncOp", True)
        timeout = getattr(opts, "timeout", _NO_TIMEOUT)
        seconds = (timeout if timeout.total_seconds() > 0 else self._timeout).total_seconds()
        return self._noted(
            self._engine.run(call, algorithm, outputs, seconds, at_once=at_once, settle=staging.settle, summed=summed)
        )

    def _noted(self, work: Work) -> Work:
        """The work, remembered inside a coalescing window."""
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def _sparse(self, tensor: Tensor, opts: Any) -> dist.Work:
        if name_of(opts.reduceOp, tensor.dtype) != "sum":
            raise ConfigError("all_reduce: sparse tensors can only be summed (ReduceOp.SUM)")
        total = SparseSum(tensor, self.size())
        first = self._run(Call("sparse all_reduce", tensor.dtype), total.count, [tensor], opts, Staging())
        first.wait()
        call = Call("sparse all_reduce", tensor.dtype, count=1)
        return self._run(call, total.move, [tensor], opts, total)

    def _reduce_scatter(self, parts: list[Tensor], output: Tensor, opts: Any, staging: Staging) -> Work:
        target = staging.write(output)
        call = Call("reduce_scatter", output.dtype, output.numel(), name_of(opts.reduceOp, output.dtype))
        return self._run(call, lambda flight: reduce.reduce_scatter(flight, parts, target), [output], opts, staging)

    def _all_gather(self, own: Tensor, flats: list[Tensor], outputs: Outputs, opts: Any, staging: Staging) -> Work:
        call = Call("all_gather", own.dtype)
        return self._run(call, lambda flight: move.all_gather(flight, own, flats), outputs, opts, staging)

    def _all_to_all(
        self, sources: list[Tensor], targets: list[Tensor], outputs: list[Tensor], opts: Any, staging: Staging
    ) -> Work:
        call = Call("all_to_all", outputs[0].dtype)
        return self._run(call, lambda flight: move.all_to_all(flight, sources, targets), outputs, opts, staging)

    def _peer(self, peer: int) -> int:
        if not 0 <= peer < self.size() or peer == self.rank():
            raise ConfigError(f"rank {peer}: not another rank of this group of {self.size()}")
        return peer

    # Names that torch used before 2.13
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single


class _Spread:
    """Staging for many tensors that travelled as one."""

    def __init__(self, flat: Tensor, tensors: list[Tensor]) -> None:
        self._flat = flat
        self._tensors = tensors

    def settle(self) -> None:
        parts = self._flat.split([tensor.numel() for tensor in self._tensors])
        for tensor, part in zip(self._tensors, parts, strict=True):
            tensor.detach().copy_(part.view(tensor.shape))


def _bind(algorithm: Callable[[Flight, Tensor], Steps], flat: Tensor) -> Callable[[Flight], Steps]:
    return lambda flight: algorithm(flight, flat)


def _single(tensors: list[Tensor], name: str) -> Tensor:
    if len(tensors) != 1:
        raise ConfigError(f"{name}: takes one tensor per rank, not {len(tensors)}")
    return tensors[0]


def _sized(flats: list[Tensor], size: int, count: int | None, what: str) -> None:
    if len(flats) != size:
        raise ConfigError(f"{what}: needs {size} tensors, one for each rank, not {len(flats)}")
    if count is not None and any(flat.numel() != count for flat in flats):
        raise ConfigError(f"{what}: every tensor must have {count} elements")


def _split(flat: Tensor, tensor: Tensor, splits: list[int], size: int, what: str) -> list[Tensor]:
    """Parts by rows of the first dimension; equal ones when no sizes are given."""
    rows = tensor.shape[0] if tensor.dim() else tensor.numel()
    if not splits:
        if rows % size:
            raise ConfigError(f"all_to_all: the {what}'s first dimension, {rows}, does not divide into {size} parts")
        splits = [rows // size] * size
    if len(splits) != size or sum(splits) != rows:
        raise ConfigError(f"all_to_all: {what} split sizes {splits} must be {size} and add up to {rows}")
    width = flat.numel() // rows if rows else 0
    return list(flat.split([rows_of * width for rows_of in splits]))


def _shut_down_at_exit(group: GradwireGroup) -> Callable[[], None]:
    weak = weakref.ref(group)

    def shut_down() -> None:
        alive = weak()
        if alive is not None:
            alive.shutdown()

    atexit.register(shut_down)
    return shut_down
