"""ReplicaState: everything that makes up a rank's replica, as bytes, so that a rank that rejoins can load it.

In: a model and whatever else training depends on (optimizer, learning-rate schedule, loss scaler): anything with
`state_dict` and `load_state_dict`. Out: a header (msgpack) and tensors, which another rank loads in place. Never
pickle: a header may only contain shapes of tensors, numbers, text, lists, tuples and dictionaries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
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
_KEYS: Final = frozenset({"step", "model", "others", "layout"})


class Stateful(Protocol):
    """What torch's optimizers, schedules and scalers have in common."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any, /) -> Any: ...


@dataclass(frozen=True, slots=True)
class BucketLayout:
    """Which parameters are in which bucket. Gradients are sent by position, not by name, so a rank that rejoins must
    have the layout of the others."""

    buckets: dict[int, tuple[str, ...]] = field(default_factory=dict)

    def to_list(self) -> list[list[int | str]]:
        return [[index, *names] for index, names in sorted(self.buckets.items())]


class ReplicaState:
    """The replica of one rank. Used while the training thread waits for gradients, so nothing changes meanwhile."""

    def __init__(
        self,
        module: nn.Module,
        others: Sequence[Stateful],
        set_step: Callable[[int], None],
        layout: BucketLayout | None = None,
    ) -> None:
        self._module, self._others, self._set_step = module, others, set_step
        self._layout = layout or BucketLayout()
        self.save(0)  # a state that cannot be sent is an error now, not when a rank rejoins

    def save(self, step: int) -> tuple[bytes, list[Tensor]]:
        """A header and the tensors it describes; `step` is the current one."""
        tensors: list[Tensor] = []
        state = {
            "step": step, "model": self._tensors(), "others": [other.state_dict() for other in self._others],
            "layout": self._layout.to_list(),
        }  # fmt: skip
        return msgspec.msgpack.encode(encode(state, tensors)), tensors

    def load(self, header: bytes, body: Tensor) -> None:
        """Overwrite this replica. IntegrityError, before anything is changed, for the state of another model."""
        received = decode(header, body)
        own, theirs = self._tensors(), received["model"]
        if {name: _form(tensor) for name, tensor in own.items()} != {name: _form(t) for name, t in theirs.items()}:
            raise IntegrityError(
                "the received replica state belongs to another model; start this rank with the script and the settings "
                "of the others"
            )
        if received["layout"] != self._layout.to_list():
            raise IntegrityError(
                "this rank cannot rejoin: DDP's buckets hold other parameters here than on the other ranks; construct "
                "DDP with the same arguments"
            )
        if len(received["others"]) != len(self._others):
            found, expected = len(received["others"]), len(self._others)
            raise IntegrityError(
                f"hand_over: the other ranks passed {found} objects, this one {expected}; pass the same on every rank"
            )
        for name, tensor in own.items():
            tensor.data.copy_(theirs[name])  # a backward pass is under way: it must not see a new version
        for other, state in zip(self._others, received["others"], strict=True):
            other.load_state_dict(state)
        self._set_step(received["step"])

    def _tensors(self) -> dict[str, Tensor]:
        return {**dict(self._module.named_parameters()), **dict(self._module.named_buffers())}


def encode(value: Any, tensors: list[Tensor]) -> list[Any]:
    """A value as nested lists of [kind, content]. Tensors are appended to `tensors`, in the order of their entries."""
    if isinstance(value, Tensor):
        if str(value.dtype) not in _DTYPES or value.layout is not torch.strided:
            raise ConfigError(
                f"hand_over: a tensor of {value.dtype} and {value.layout} cannot be sent; dense tensors of these types "
                f"can: {', '.join(_DTYPES)}"
            )
        tensors.append(value)
        return ["tensor", [str(value.dtype), list(value.shape)]]
    if value is None or isinstance(value, bool | int | float | str):
        return ["plain", value]
    if isinstance(value, Mapping):
        return ["dict", [[encode(key, tensors), encode(entry, tensors)] for key, entry in value.items()]]
    if isinstance(value, tuple | list):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return [kind, [encode(entry, tensors) for entry in value]]
    raise ConfigError(
        f"hand_over: a state that holds a {type(value).__name__} cannot be sent; "
        "tensors, numbers, text, lists, tuples and dictionaries can"
    )


def decode(header: bytes, body: Tensor, keys: Set[str] = _KEYS) -> dict[str, Any]:
    """A dictionary with these keys that was encoded; IntegrityError for anything else."""
    end = 0

    def tensor(dtype: str, shape: list[int]) -> Tensor:
        nonlocal end
        empty = torch.empty(shape, dtype=_DTYPES[dtype])
        start, end = end, end + empty.nbytes
        if end > body.numel():
            raise IntegrityError("a received replica state is shorter than its header says")
        empty.reshape(-1).view(torch.uint8).copy_(body[start:end])
        return empty

    def value_of(encoded: list[Any]) -> Any:
        kind, content = encoded
        match kind:
            case "tensor":
                return tensor(*content)
            case "dict":
                return {value_of(key): value_of(entry) for key, entry in content}
            case "tuple":
                return tuple(value_of(entry) for entry in content)
            case "list":
                return [value_of(entry) for entry in content]
            case "plain":
                return content
        raise IntegrityError(f"a received replica state holds an unknown kind {kind!r}")

    try:
        state = value_of(msgspec.msgpack.decode(header))
    except (msgspec.DecodeError, TypeError, ValueError, KeyError, RuntimeError, RecursionError) as error:
        raise IntegrityError(f"a received replica state cannot be read: {error}") from error
    if not isinstance(state, dict) or state.keys() != keys or end != body.numel():
        raise IntegrityError("a received replica state is incomplete")
    return state


def _form(tensor: Tensor) -> tuple[torch.Size, torch.dtype]:
    return tensor.shape, tensor.dtype
