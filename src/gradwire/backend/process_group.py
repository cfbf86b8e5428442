"""Process group: what is behind `torch.distributed.init_process_group("gradwire")`.

Torch finds it through `backend/entry.py`; no import is needed. `GradwireGroup` translates torch's calls into
operations: lists of tensors in, flat memory and a Call out. It holds no algorithm. `backend/call_forms.py` turns the
forms in which torch may call (bare tensors, no options) into one.
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
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    GatherOptions,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
)

from gradwire.backend import backend_base, move, reduce, tensor_checks
from gradwire.backend.call import Call
from gradwire.backend.call_forms import collective, routed
from gradwire.backend.device_routing import CudaBackend, DeviceRoutedGroup
from gradwire.backend.engine import OperationEngine
from gradwire.backend.monitored_barrier import monitored_barrier, patch_torch
from gradwire.backend.op_transfers import OpTransfers, Steps
from gradwire.backend.p2p import PointToPoint
from gradwire.backend.reduce_ops import name_of
from gradwire.backend.shared_wire import SharedWire, open_peer_group
from gradwire.backend.shm_allreduce import open_shm_allreduce
from gradwire.backend.sparse_allreduce import SparseSum
from gradwire.backend.split_group import split_options
from gradwire.backend.staging import StagedList, Staging
from gradwire.backend.tags import check_user_tag
from gradwire.backend.wire_choice import open_wire
from gradwire.backend.work import CollectiveWork, CombinedWork, Outputs
from gradwire.closing import Closing
from gradwire.errors import ConfigError
from gradwire.fork import void_in_child

NAME = "gradwire"
_NO_TIMEOUT = timedelta(milliseconds=-1)


def create(options: Any, backend_options: object = None) -> Any:
    """Makes the group for torch, or with GRADWIRE_BACKEND_BASE=1 a backend object in front of it."""
    wrap = backend_base.requested()
    group = _make(options, backend_options)
    return backend_base.as_backend(group) if wrap else group


def _make(options: Any, backend_options: object) -> GradwireGroup:
    """A group of the given ranks: on the default group's wire when that is a gradwire group, else on a new wire."""
    patch_torch(GradwireGroup)
    rank, size = options.group_rank, options.group_size
    shared = _default_wire() if options.global_ranks_in_group else None
    if shared is None:
        shared = SharedWire(open_wire(options.store, rank, size, options.timeout.total_seconds()), options.store)
        members: Sequence[int] = range(size)
    else:
        members = options.global_ranks_in_group
    return GradwireGroup(shared, options, members, backend_options)


def _default_wire() -> SharedWire | None:
    world = backend_base.gradwire_group_of(dist.group.WORLD)
    return world.shared if isinstance(world, GradwireGroup) else None


class GradwireGroup(DeviceRoutedGroup):
    """A process group over a wire. Method names and arguments are torch's, the old ones and those of 2.13."""

    BACKEND = NAME

    def __init__(self, shared: SharedWire, options: Any, members: Sequence[int], given: object = None) -> None:
        super().__init__(options)
        self.shared = shared
        timeout = options.timeout.total_seconds()
        self._peer_group = open_peer_group(shared, options.store, options.group_rank, members, timeout)
        self.cuda = CudaBackend(self, self._peer_group.number, given)
        shm = open_shm_allreduce(self._peer_group, timeout)
        self._engine = OperationEngine(self._peer_group, options.group_id or "default", shm)
        self._p2p = PointToPoint(self._peer_group, timeout, self._engine.callbacks)
        self._barriers = self._splits = 0
        self._coalesced: list[CollectiveWork] | None = None
        self._open, self._abort, self._closing = True, False, Closing()
        # Threads and sockets must end before the interpreter does, even if the group is never destroyed.
        self._at_exit = _shut_down_at_exit(self)
        void_in_child(self, GradwireGroup._void)

    # Sums

    @collective(AllreduceOptions, "tensors")
    def allreduce(self, tensors: list[Tensor], opts: Any) -> dist.Work:
        tensor = tensor_checks.single(tensors, "all_reduce")
        if tensor.layout != torch.strided:
            return self._sparse(tensor, opts)
        staging = Staging()
        flat = staging.write(tensor, read=True)
        call = Call("all_reduce", tensor.dtype, tensor.numel(), name_of(opts.reduceOp, tensor.dtype))
        return self._run(call, _bind(reduce.all_reduce, flat), tensors, opts, staging, flat)

    @collective(AllreduceCoalescedOptions, "tensors")
    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any) -> dist.Work:
        if any(tensor.layout != torch.strided for tensor in tensors):
            raise ConfigError("all_reduce_coalesced: takes dense tensors only")
        works = []
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            alike = [tensor for tensor in tensors if tensor.dtype == dtype]
            flat = torch.cat([tensor.detach().reshape(-1).cpu() for tensor in alike])
            staging = StagedList(flat, alike)
            call = Call("all_reduce", dtype, flat.numel(), name_of(opts.reduceOp, dtype))
            works.append(self._run(call, _bind(reduce.all_reduce, flat), alike, opts, staging, flat))
        return works[0] if len(works) == 1 else CombinedWork(works)

    @collective(ReduceOptions, "tensors")
    def reduce(self, tensors: list[Tensor], opts: Any) -> dist.Work:
        tensor, staging = tensor_checks.single(tensors, "reduce"), Staging()
        root = tensor_checks.root_in(opts.rootRank, self.size(), "reduce")
        flat = staging.write(tensor, read=True) if root == self.rank() else staging.read(tensor)
        call = Call("reduce", tensor.dtype, tensor.numel(), name_of(opts.reduceOp, tensor.dtype), root)
        return self._run(call, lambda op: reduce.reduce(op, flat, root), tensors, opts, staging)

    @collective(ReduceScatterOptions, "output_tensors", "input_tensors")
    def reduce_scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> dist.Work:
        output, staging = tensor_checks.single(outputs, "reduce_scatter"), Staging()
        tensor_checks.alike(inputs[0], output, "reduce_scatter: input_list")
        parts = [staging.read(part) for part in inputs[0]]
        tensor_checks.sized(parts, self.size(), output.numel(), "reduce_scatter: input_list")
        return self._reduce_scatter(parts, output, opts, staging)

    @collective(ReduceScatterOptions, "outputTensor", "inputTensor")
    def reduce_scatter_single(self, output: Tensor, source: Tensor, opts: Any) -> dist.Work:
        tensor_checks.parts_fit(source, output, self.size(), "reduce_scatter: input tensor", "output")
        staging = Staging()
        parts = list(staging.read(source).view(self.size(), -1))
        return self._reduce_scatter(parts, output, opts, staging)

    @collective(ReduceScatterOptions, "outputs", "inputs")
    def reduce_scatter_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any) -> dist.Work:
        return CombinedWork([self.reduce_scatter_single(o, i, opts) for o, i in zip(outputs, inputs, strict=True)])

    # Moves

    @collective(BroadcastOptions, "tensors")
    def broadcast(self, tensors: list[Tensor], opts: Any) -> dist.Work:
        tensor, staging = tensor_checks.single(tensors, "broadcast"), Staging()
        root = tensor_checks.root_in(opts.rootRank, self.size(), "broadcast")
        flat = staging.read(tensor) if root == self.rank() else staging.write(tensor)
        call = Call("broadcast", tensor.dtype, tensor.numel(), root=root)
        return self._run(call, lambda op: move.broadcast(op, flat, root), tensors, opts, staging)

    @collective(AllgatherOptions, "output_tensors", "input_tensors")
    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> dist.Work:
        own, staging = tensor_checks.single(inputs, "all_gather"), Staging()
        tensor_checks.alike(outputs[0], own, "all_gather: tensor_list")
        flats = [staging.write(tensor) for tensor in outputs[0]]
        tensor_checks.sized(flats, self.size(), None, "all_gather: tensor_list")
        # Ranks may pass tensors of different sizes; this rank knows its own.
        tensor_checks.sized([flats[self.rank()]], 1, own.numel(), f"all_gather: tensor_list[{self.rank()}]")
        return self._all_gather(staging.read(own), flats, outputs, opts, staging)

    @collective(AllgatherOptions, "output", "input")
    def all_gather_single(self, output: Tensor, source: Tensor, opts: Any) -> dist.Work:
        tensor_checks.parts_fit(output, source, self.size(), "all_gather: output tensor", "input")
        staging = Staging()
        flats = list(staging.write(output).view(self.size(), -1))
        return self._all_gather(staging.read(source), flats, [output], opts, staging)

    @collective(AllgatherOptions, "outputs", "inputs")
    def all_gather_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any) -> dist.Work:
        return CombinedWork([self.all_gather_single(o, i, opts) for o, i in zip(outputs, inputs, strict=True)])

    @collective(AllgatherOptions, "output_lists", "input_list")
    def allgather_coalesced(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> dist.Work:
        """`outputs[r][i]` becomes rank r's inputs[i]."""
        each = [[row[index] for row in outputs] for index in range(len(inputs))]
        return CombinedWork([self.allgather([out], [own], opts) for out, own in zip(each, inputs, strict=True)])

    @collective(GatherOptions, "output_tensors", "input_tensors")
    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> dist.Work:
        own, staging = tensor_checks.single(inputs, "gather"), Staging()
        root = tensor_checks.root_in(opts.rootRank, self.size(), "gather")
        flats = [staging.write(tensor) for tensor in outputs[0]] if self.rank() == root else []
        if self.rank() == root:
            tensor_checks.alike(outputs[0], own, "gather: gather_list")
            tensor_checks.sized(flats, self.size(), own.numel(), "gather: gather_list")
        source = staging.read(own)
        call = Call("gather", own.dtype, own.numel(), root=root)
        return self._run(call, lambda op: move.gather(op, source, flats, root), outputs, opts, staging)

    @collective(ScatterOptions, "output_tensors", "input_tensors")
    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> dist.Work:
        output, staging = tensor_checks.single(outputs, "scatter"), Staging()
        root = tensor_checks.root_in(opts.rootRank, self.size(), "scatter")
        flats = [staging.read(tensor) for tensor in inputs[0]] if self.rank() == root else []
        if self.rank() == root:
            tensor_checks.alike(inputs[0], output, "scatter: scatter_list")
            tensor_checks.sized(flats, self.size(), output.numel(), "scatter: scatter_list")
        target = staging.write(output)
        call = Call("scatter", output.dtype, output.numel(), root=root)
        return self._run(call, lambda op: move.scatter(op, flats, target, root), outputs, opts, staging)

    @collective(AllToAllOptions, "output_tensors", "input_tensors")
    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any) -> dist.Work:
        staging = Staging()
        sources, targets = [staging.read(t) for t in inputs], [staging.write(t) for t in outputs]
        tensor_checks.sized(sources, self.size(), None, "all_to_all: input_tensor_list")
        tensor_checks.sized(targets, self.size(), None, "all_to_all: output_tensor_list")
        tensor_checks.alike([*inputs, *outputs], inputs[0], "all_to_all")
        return self._all_to_all(sources, targets, outputs, opts, staging)

    @collective(AllToAllOptions, "output", "input", "output_split_sizes", "input_split_sizes")
    def all_to_all_single(
        self, output: Tensor, source: Tensor, output_splits: list[int], input_splits: list[int], opts: Any
    ) -> dist.Work:
        staging = Staging()
        tensor_checks.alike([source], output, "all_to_all: input")
        sources = tensor_checks.split(staging.read(source), source, input_splits, self.size(), "input")
        targets = tensor_checks.split(staging.write(output), output, output_splits, self.size(), "output")
        return self._all_to_all(sources, targets, [output], opts, staging)

    @collective(BarrierOptions)
    def barrier(self, opts: Any) -> dist.Work:
        # Only a caller that names a GPU waits for the operations started on it.
        other = self.other_backend(getattr(opts, "device", None) if opts.device_ids else None)
        if other is not None:
            return other.barrier(opts)  # type: ignore[no-any-return]
        nothing = torch.empty(0, dtype=torch.uint8)
        return self._run(Call("barrier"), _bind(move.barrier, nothing), [], opts, Staging(), nothing)

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """A barrier that names the ranks that did not come. A failure leaves the group usable."""
        self._barriers += 1
        limit = self._timeout if timeout is None else timeout
        monitored_barrier(self._peer_group, self._barriers, limit, wait_all_ranks)

    # Point to point

    @routed
    def send(self, tensors: list[Tensor], peer: int, tag: int = 0) -> dist.Work:
        flat = Staging().read(tensor_checks.single(tensors, "send"))
        return self._collected(self._p2p.send(flat, self._peer(peer), check_user_tag(tag)))

    @routed
    def recv(self, tensors: list[Tensor], peer: int, tag: int = 0) -> dist.Work:
        staging = Staging()
        flat = staging.write(tensor_checks.single(tensors, "recv"))
        return self._collected(self._p2p.receive(flat, self._peer(peer), check_user_tag(tag), staging.copy_back))

    @routed
    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> dist.Work:
        staging = Staging()
        flat = staging.write(tensor_checks.single(tensors, "recv"))
        return self._collected(self._p2p.receive(flat, None, check_user_tag(tag), staging.copy_back))

    # Torch's coalescing windows: operations run concurrently anyway, and are waited for as one.

    def _start_coalescing(self, device: Any = None) -> None:
        other = self.other_backend(device)
        if other is None:
            self._coalesced = []
        else:
            other._start_coalescing(device)

    def _end_coalescing(self, device: Any = None) -> dist.Work:
        other = self.other_backend(device)
        if other is not None:
            return other._end_coalescing(device)  # type: ignore[no-any-return]
        works, self._coalesced = self._coalesced or [], None
        return CombinedWork(works)

    # Sub-groups

    def split_group(
        self, ranks: Sequence[int], timeout: timedelta | None = None, opts: Any = None, group_name: str | None = None,
        group_desc: str | None = None, device_types: Sequence[torch.device] | None = None,
    ) -> GradwireGroup | None:  # fmt: skip
        """A group of some of this group's ranks on the same wire; None on the others. Those ranks call this."""
        self._splits += 1
        options = split_options(self, sorted(ranks), timeout or self._timeout, group_name)
        if options is None:
            return None
        part = GradwireGroup(self.shared, options, [self._peer_group.members[rank] for rank in sorted(ranks)], opts)
        part._set_group_desc(group_desc or f"{self.group_desc}:split:{self._splits}")
        return part

    def _get_sequence_number_for_group(self) -> int:
        return self._engine.started

    # End

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout
        self._p2p.timeout = timeout.total_seconds()
        self.cuda.set_timeout(timeout)

    _set_default_timeout = set_timeout

    def shutdown(self) -> None:
        """Finish running operations, then leave the wire."""
        self._end(abort=False)

    def abort(self) -> None:
        """End running operations with an error, here and on the other ranks."""
        self._end(abort=True)

    def __del__(self) -> None:
        # Torch before 2.6 destroys a group without calling its shutdown.
        self._end(abort=False)

    def _void(self) -> None:
        """In a forked child: the group's threads, wire and memory belong to the parent."""
        self._open = False
        atexit.unregister(self._at_exit)

    def _end(self, *, abort: bool) -> None:
        """Closes every part, also after one of them fails; a second call tries the failed one again."""
        if not hasattr(self, "_closing"):  # the constructor failed
            return
        self._abort = abort
        if self._open:
            self._open = False
            atexit.unregister(self._at_exit)
            self._closing = Closing(
                lambda: self.cuda.end(abort=self._abort),
                lambda: self._engine.close(abort=self._abort),
                self._p2p.close,
                self._peer_group.close,
                self.drop_store,
                self.shared.leave,
            )
        self._closing.close()

    # Shared by the methods above

    def _run(
        self, call: Call, algorithm: Callable[[OpTransfers], Steps], outputs: Outputs, opts: Any, staging: Any,
        summed: Tensor | None = None,
    ) -> CollectiveWork:  # fmt: skip
        if not self._open:
            raise ConfigError(
                f"{call.name}: this process group was destroyed, or belongs to the parent of this forked process"
            )
        blocking = not getattr(opts, "asyncOp", True)
        timeout = getattr(opts, "timeout", _NO_TIMEOUT)
        seconds = (timeout if timeout.total_seconds() > 0 else self._timeout).total_seconds()
        return self._collected(
            self._engine.run(
                call, algorithm, outputs, seconds, blocking=blocking, on_complete=staging.copy_back, summed=summed
            )
        )

    def _collected(self, work: CollectiveWork) -> CollectiveWork:
        """The work; inside a coalescing window it is also kept for the window's end."""
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def _sparse(self, tensor: Tensor, opts: Any) -> dist.Work:
        if name_of(opts.reduceOp, tensor.dtype) != "sum":
            raise ConfigError("all_reduce: sparse tensors can only be summed (ReduceOp.SUM)")
        total = SparseSum(tensor, self.size())
        self._run(Call("sparse all_reduce", tensor.dtype), total.count, [tensor], opts, Staging()).wait()
        return self._run(Call("sparse all_reduce", tensor.dtype, count=1), total.move, [tensor], opts, total)

    def _reduce_scatter(self, parts: list[Tensor], output: Tensor, opts: Any, staging: Staging) -> CollectiveWork:
        target = staging.write(output)
        call = Call("reduce_scatter", output.dtype, output.numel(), name_of(opts.reduceOp, output.dtype))
        return self._run(call, lambda op: reduce.reduce_scatter(op, parts, target), [output], opts, staging)

    def _all_gather(
        self, own: Tensor, flats: list[Tensor], outputs: Outputs, opts: Any, staging: Staging
    ) -> CollectiveWork:
        call = Call("all_gather", own.dtype)
        return self._run(call, lambda op: move.all_gather(op, own, flats), outputs, opts, staging)

    def _all_to_all(
        self, sources: list[Tensor], targets: list[Tensor], outputs: list[Tensor], opts: Any, staging: Staging
    ) -> CollectiveWork:
        call = Call("all_to_all", outputs[0].dtype)
        return self._run(call, lambda op: move.all_to_all(op, sources, targets), outputs, opts, staging)

    def _peer(self, peer: int) -> int:
        if not 0 <= peer < self.size() or peer == self.rank():
            raise ConfigError(f"rank {peer}: is not another rank of this group of {self.size()} ranks")
        return peer

    # Names that torch used before 2.13
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single


def _bind(algorithm: Callable[[OpTransfers, Tensor], Steps], flat: Tensor) -> Callable[[OpTransfers], Steps]:
    return lambda op: algorithm(op, flat)


def _shut_down_at_exit(group: GradwireGroup) -> Callable[[], None]:
    weak = weakref.ref(group)

    def shut_down() -> None:
        alive = weak()
        if alive is not None:
            alive.shutdown()

    atexit.register(shut_down)
    return shut_down
