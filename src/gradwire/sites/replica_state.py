"""Handover: what makes up a replica, as bytes, so that a rank that was cut off can become what the others are.

In: a model and whatever else training depends on (optimizer, learning-rate schedule, loss scaler): anything with
`state_dict` and `load_state_dict`. Out: a description (msgpack) and tensors, and the same taken in again, in place.
Never pickle: a description may only speak of tensors, numbers, text, lists, tuples and dictionaries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import msgspec
import torch
from torch import Tensor, nn

from gradwire.errors import ConfigError, IntegrityError

_DTYPES: Final = {
    str(dtype): dtype
    for dtype in (
        torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128,
        torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
    )
}  # fmt: skip


class Stateful(Protocol):
    """What torch's optimizers, schedules and scalers have in common."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any, /) -> Any: ...


@dataclass(frozen=True, slots=True)
class BucketLayout:
    """Which parameters lie in which bucket. Gradients travel by place, not by name: who is handed the others' state
    must have their layout."""

    buckets: dict[int, tuple[str, ...]] = field(default_factory=dict)

    def written(self) -> list[list[int | str]]:
        return [[index, *names] for index, names in sorted(self.buckets.items())]


class ReplicaState:
    """The replica of one rank. Used while its training thread waits for gradients: nothing changes meanwhile."""

    def __init__(
        self,
        module: nn.Module,
        others: Sequence[Stateful],
        set_step: Callable[[int], None],
        layout: BucketLayout | None = None,
    ) -> None:
        self._module, self._others, self._set_step = module, others, set_step
        self._layout = layout or BucketLayout()
        self.give(0)  # what cannot be handed over is named now, not when it is needed

    def give(self, step: int) -> tuple[bytes, list[Tensor]]:
        """A description and the tensors it speaks of; `step` is the one under way."""
        tensors: list[Tensor] = []
        whole = {
            "step": step, "model": self._tensors(), "others": [other.state_dict() for other in self._others],
            "layout": self._layout.written(),
        }  # fmt: skip
        return msgspec.msgpack.encode(fold(whole, tensors)), tensors

    def take(self, header: bytes, body: Tensor) -> None:
        """Become what they describe. IntegrityError, before anything is changed, if they are of another model."""
        told = unfold(header, body)
        own, theirs = self._tensors(), told["model"]
        if {name: _form(tensor) for name, tensor in own.items()} != {name: _form(t) for name, t in theirs.items()}:
            raise IntegrityError("the state that was handed over is of another model")
        if told["layout"] != self._layout.written():
            raise IntegrityError("DDP's buckets hold other parameters here than on the others: no place for this rank")
        if len(told["others"]) != len(self._others):
            raise IntegrityError(f"{len(told['others'])} objects were handed over, {len(self._others)} are expected")
        for name, tensor in own.items():
            tensor.data.copy_(theirs[name])  # a backward pass is under way: it must not see a new version
        for other, state in zip(self._others, told["others"], strict=True):
            other.load_state_dict(state)
        self._set_step(told["step"])

    def _tensors(self) -> dict[str, Tensor]:
        return {**dict(self._module.named_parameters()), **dict(self._module.named_buffers())}


def fold(value: Any, tensors: list[Tensor]) -> list[Any]:
    """A value as lists of [kind, content]; tensors are put aside and named by their place."""
    if isinstance(value, Tensor):
        if str(value.dtype) not in _DTYPES or value.layout is not torch.strided:
            raise ConfigError(f"hand_over: a tensor of {value.dtype} and {value.layout} cannot be handed over")
        tensors.append(value)
        return ["tensor", [str(value.dtype), list(value.shape)]]
    if value is None or isinstance(value, bool | int | float | str):
        return ["plain", value]
    if isinstance(value, Mapping):
        return ["dict", [[fold(key, tensors), fold(entry, tensors)] for key, entry in value.items()]]
    if isinstance(value, tuple | list):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return [kind, [fold(entry, tensors) for entry in value]]
    raise ConfigError(
        f"hand_over: a state that holds a {type(value).__name__} cannot be handed over; "
        "tensors, numbers, text, lists, tuples and dictionaries can"
    )


def unfold(header: bytes, body: Tensor) -> dict[str, Any]:
    """What was folded; IntegrityError for anything else."""
    place = 0

    def tensor(dtype: str, shape: list[int]) -> Tensor:
        nonlocal place
        empty = torch.empty(shape, dtype=_DTYPES[dtype])
        start, place = place, place + empty.nbytes
        if place > body.numel():
            raise IntegrityError("a state that was handed over ends too early")
        empty.reshape(-1).view(torch.uint8).copy_(body[start:place])
        return empty

    def open_up(folded: list[Any]) -> Any:
        kind, content = folded
        match kind:
            case "tensor":
                return tensor(*content)
            case "dict":
                return {open_up(key): open_up(entry) for key, entry in content}
            case "tuple":
                return tuple(open_up(entry) for entry in content)
            case "list":
                return [open_up(entry) for entry in content]
            case "plain":
                return content
        raise IntegrityError(f"a state that was handed over holds a {kind!r}")

    try:
        told = open_up(msgspec.msgpack.decode(header))
    except (msgspec.DecodeError, TypeError, ValueError, KeyError, RuntimeError, RecursionError) as error:
        raise IntegrityError(f"a state that was handed over cannot be read: {error}") from error
    if not isinstance(told, dict) or told.keys() != {"step", "model", "others", "layout"} or place != body.numel():
        raise IntegrityError("a state that was handed over is not whole")
    return told


def _form(tensor: Tensor) -> tuple[torch.Size, torch.dtype]:
    return tensor.shape, tensor.dtype
