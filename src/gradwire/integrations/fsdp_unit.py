"""FSDP unit: one FSDP2 parameter group. The only module that uses FSDP2's private names.

torch offers a hook (`set_all_reduce_hook`), but does not say whose gradients its buffer holds, and native HSDP does its
own all-reduce beside the hook. So this module reads a parameter group's list, and removes the replicate dimension from
the group's mesh information: then the group reduces like one-dimensional FSDP, while parameters stay on the whole mesh.
It also wraps each state's `_root_post_backward_final_callback`, the only sign of a backward's end.
Written for torch 2.13; `tests/train/test_fsdp.py` fails when those names change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard import _fsdp_common as common

from gradwire.compress.base import Weights
from gradwire.errors import ConfigError
from gradwire.integrations.ddp_hook import BucketWeights
from gradwire.runtime.job_ranks import JobRanks
from gradwire.types import ParameterSlice


class FsdpUnit:
    """The parameters that one `fully_shard` call manages."""

    def __init__(self, name: str, module: FSDPModule, group: Any, prefixes: dict[int, str]) -> None:
        self._name = name
        self._module = module
        self._group = group
        self._prefixes = prefixes
        mesh = group.mesh_info
        if not isinstance(mesh, common.DDPMeshInfo):
            raise ConfigError(
                f"attach_fsdp: {name or 'the model'} is sharded over all ranks, so there is no replicate dimension to "
                "synchronise; use a mesh of (replicate, shard): init_device_mesh('cpu', (2, 2)), for example"
            )
        if group._all_reduce_hook is not None:
            raise ConfigError(
                f"attach_fsdp: {name or 'the model'} already has an all-reduce hook, and FSDP2 takes one; leave out "
                "the other set_all_reduce_hook"
            )
        self.replicate_group: dist.ProcessGroup = mesh.replicate_process_group
        self.shard = (0, 1)
        self.shard_group: dist.ProcessGroup | None = None
        self._ranks: list[int] = mesh.mesh.mesh.flatten().tolist()
        if isinstance(mesh, common.HSDPMeshInfo):
            self.shard_group = mesh.shard_process_group
            self.shard = (mesh.shard_mesh_rank, mesh.shard_mesh_size)

    def set_hook(self, hook: Callable[[FsdpUnit, Tensor], None]) -> None:
        """From now on the group's reduced shards go to the hook and not through torch's all-reduce."""
        mesh = self._group.mesh_info
        shard_mesh = _without_replicas(mesh)
        if self._group.post_forward_mesh_info is mesh:  # the same object means: no other mesh after forward
            self._group.post_forward_mesh_info = shard_mesh
        self._group.mesh_info = shard_mesh
        self._module.set_all_reduce_hook(lambda buffer: hook(self, buffer))

    @property
    def job_ranks(self) -> JobRanks | None:
        """All shards at all sites; None where there are no shards."""
        if self.shard[1] == 1:
            return None
        return JobRanks.of_shards(dist.get_rank(), self._ranks, dist.get_process_group_ranks(self.replicate_group))

    def any_shard(self, own: bool) -> bool:
        """Whether any rank of the site passes True; all of them call this at the same point."""
        if self.shard_group is None:
            return own
        device = dist.distributed_c10d._get_object_coll_device(self.shard_group)
        flag = torch.tensor([float(own)], dtype=torch.float32, device=device)
        dist.all_reduce(flag, dist.ReduceOp.MAX, group=self.shard_group)
        return bool(flag.item())

    @property
    def numel(self) -> int:
        return sum(part.padded_sharded_param_size.numel() for part in self._trained())

    @property
    def requires_all_reduce(self) -> bool:
        """Whether the user wants this backward's gradients synchronised across replicas."""
        return bool(self._group.all_reduce_grads)

    @property
    def divides_itself(self) -> bool:
        """Whether the user set a gradient divisor, which takes the replicas into account."""
        return self._group.gradient_divide_factor is not None

    def layout(self, numel: int) -> tuple[tuple[ParameterSlice, ...], Weights]:
        """Whose gradients a buffer of this length holds, and the weights under it."""
        parts = list(self._trained())
        offset, slices = 0, []
        for part in parts:
            shape = tuple(part.padded_sharded_param_size)
            size = part.padded_sharded_param_size.numel()
            slices.append(ParameterSlice(self._name_of(part), offset, shape, size))
            offset += size
        if offset != numel:
            raise ConfigError(
                f"attach_fsdp: some parameters of {self._name or 'the model'} got no gradient in this backward; "
                "call model.set_reduce_scatter_unused_params(True), so that their gradient is zero on every rank"
            )
        return tuple(slices), BucketWeights([part._sharded_param_data for part in parts])

    def views_only(self, buffer: Tensor) -> bool:
        """Whether FSDP2, after the hook, only makes gradients that are views of the buffer: no cast, no division, no
        accumulation into an existing gradient, no copy to another device, no user hook. On CUDA the hook runs on
        FSDP2's stream, behind which the session copies; the end of backward has the training stream wait."""
        group = self._group
        return (
            buffer.device.type in ("cpu", "cuda")
            and group._orig_dtype in (None, buffer.dtype)
            and buffer.dtype in (torch.float32, torch.bfloat16)
            and not group.force_sum_reduction_for_comms
            and not any(_reads_gradient(part) for part in group.fsdp_params)
        )

    def trained(self) -> Iterator[tuple[str, nn.Parameter]]:
        """This rank's shards of the parameters that are trained, by name. A parameter that several modules of the unit
        have counts once."""
        return ((self._name_of(part), part.sharded_param) for part in self._trained())

    def _trained(self) -> Iterator[Any]:
        return (part for part in self._group.fsdp_params if part.sharded_param.requires_grad)

    def _name_of(self, part: Any) -> str:
        """The parameter's name in the model; with the shard, where there are several."""
        info = part._module_info
        prefix = self._prefixes[id(info.module)]
        name = f"{prefix}.{info.param_name}" if prefix else str(info.param_name)
        return name if self.shard[1] == 1 else f"{name}[{self.shard[0]}/{self.shard[1]}]"


def units_of(model: nn.Module) -> list[FsdpUnit]:
    """All units of a wrapped model; ConfigError where this torch or this wrapping is not supported."""
    prefixes = {id(module): name for name, module in model.named_modules()}
    units: list[FsdpUnit] = []
    for name, module in model.named_modules():
        if not isinstance(module, FSDPModule):
            continue
        groups = getattr(module._get_fsdp_state(), "_fsdp_param_groups", None)
        if groups is None:
            raise ConfigError(f"attach_fsdp: needs torch 2.13 or later; this is torch {torch.__version__}")
        if len(groups) > 1:
            raise ConfigError(
                f"attach_fsdp: {name or 'the model'} has parameters on several meshes (shard_placement_fn); use one"
            )
        units += [FsdpUnit(name, module, group, prefixes) for group in groups]
    if not units:
        raise ConfigError("attach_fsdp: the model has no parameters")
    return units


def after_backward(model: nn.Module, callback: Callable[[], None]) -> None:
    """Call `callback` at the end of every backward, after FSDP2's own last callback, which may still reduce units whose
    inputs needed no gradient.

    The first state in the outermost backward queues FSDP2's callback, once. Reentrant checkpointing runs each block's
    backward inside it; a callback queued by a unit's hook would run when the inner backward ends.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            state: Any = module._get_fsdp_state()
            state._root_post_backward_final_callback = _in_turn(state._root_post_backward_final_callback, callback)


def _in_turn(first: Callable[[], None], then: Callable[[], None]) -> Callable[[], None]:
    def both() -> None:
        first()
        then()

    return both


def _reads_gradient(part: Any) -> bool:
    parameter = part.sharded_param
    return bool(
        part.offload_to_cpu or parameter.grad is not None or getattr(parameter, "_post_accumulate_grad_hooks", None)
    )


def _without_replicas(mesh: Any) -> common.DataParallelMeshInfo:
    """The same mesh, but the group reduces over the shard dimension alone, or not at all where there is none."""
    known = {field.name: getattr(mesh, field.name) for field in fields(mesh) if field.init}
    if not isinstance(mesh, common.HSDPMeshInfo):
        return common.DataParallelMeshInfo(**known)
    shard_mesh = common.FSDPMeshInfo(**{**known, "replicate_mesh_dim": None})
    shard_mesh.reduce_scatter_process_group = mesh.reduce_scatter_process_group
    return shard_mesh
