"""Weight tensors: what DDP's constructor synchronises of a model, and a manifest of it.

In: a module. Out: its parameters and buffers as DDP sees them (tied ones once, without those that the module tells DDP
to ignore), a line about each for comparisons and errors, and a SHA-256 of each one's bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from gradwire.transport.bootstrap.weight_check import WeightManifest
from gradwire.transport.chain_send import as_bytes


class WeightTensors:
    """The tensors of one module; `buffers`: with buffers, as DDP does by default."""

    def __init__(self, module: nn.Module, buffers: bool = True) -> None:
        ignored = set(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
        parameters = {name: one for name, one in module.named_parameters() if name not in ignored}
        named: list[tuple[str, Tensor]] = [(f"parameter {name}", one) for name, one in parameters.items()]
        if buffers:
            named += [(f"buffer {name}", one) for name, one in module.named_buffers() if name not in ignored]
        self._named = named
        self.trained: list[Tensor] = [one for one in parameters.values() if one.requires_grad]
        self.tensors = [tensor.detach() for _, tensor in named]

    @property
    def nbytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors)

    @property
    def readable(self) -> bool:
        """Whether every tensor is an ordinary one: dense, with memory, no subclass such as DTensor."""
        return all(_ordinary(tensor) for tensor in self.tensors)

    @property
    def on_host(self) -> bool:
        return all(tensor.device.type == "cpu" for tensor in self.tensors)

    def manifest(self) -> WeightManifest:
        lines = tuple(_line(name, tensor) for name, tensor in self._named)
        return WeightManifest(lines, tuple(self._digests()))

    def _digests(self) -> Iterator[str]:
        for tensor in self.tensors:
            yield hashlib.sha256(as_bytes(tensor).numpy().data).hexdigest()


def _line(name: str, tensor: Tensor) -> str:
    """Gradients are exchanged in the memory layout of a parameter, so strides of those that are trained count."""
    shape = "x".join(map(str, tensor.shape)) or "scalar"
    trained = f", trained, strides {list(tensor.stride())}" if tensor.requires_grad else ""
    return f"{name} ({str(tensor.dtype).removeprefix('torch.')} {shape}{trained})"


def _ordinary(tensor: Tensor) -> bool:
    return type(tensor) is Tensor and tensor.layout is torch.strided and tensor.device.type != "meta"
