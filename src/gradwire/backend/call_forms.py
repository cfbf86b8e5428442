"""Call forms: turns the several forms in which torch calls a collective into the one that a group implements.

In: what torch's own bindings take: lists of tensors and an options object, or bare tensors with a root, an operator and
a timeout; options may be left out. Out: lists of tensors and an options object.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, Final

import torch.distributed as dist
from torch import Tensor

Method = Callable[..., Any]
# Names that torch used before 2.13.
OLD_NAMES: Final = {
    "all_gather_single": "_allgather_base",
    "all_gather_single_coalesced": "allgather_into_tensor_coalesced",
    "reduce_scatter_single": "_reduce_scatter_base",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
    "all_to_all_single": "alltoall_base",
}
_FIELDS: Final = {"root": "rootRank", "op": "reduceOp", "timeout": "timeout"}
_OPERATORS: Final = (dist.ReduceOp, dist.ReduceOp.RedOpType)


def collective(options: type, *names: str) -> Callable[[Method], Method]:
    """Decorates a method that takes the arguments `names`, as torch calls them, and options of type `options`.

    Names in the plural are lists; where one argument is a bare tensor, each argument becomes a list with one entry.
    Tensors of a device that another backend of the group serves (`backend_for`) go to that backend.
    """

    listed = any(name.endswith("s") for name in names[:2])

    def decorate(method: Method) -> Method:
        @functools.wraps(method)
        def call(self: Any, *args: Any, **named: Any) -> Any:
            given, settings = args[: len(names)], args[len(names) :]
            if len(given) < len(names):
                given = (*given, *(_named(named, name) for name in names[len(given) :]))
            if listed and any(isinstance(one, Tensor) for one in given):
                given = tuple([one] for one in given)
            opts = _options(options, settings, named)
            other = self.backend_for(first_tensor(given))
            if other is None:
                return method(self, *given, opts)
            return torch_method(other, method.__name__)(*given, opts)

        return call

    return decorate


def routed(method: Method) -> Method:
    """The same for a send or a receive: its first argument is a list of tensors, and it has no options."""

    @functools.wraps(method)
    def call(self: Any, tensors: list[Tensor], *args: Any, **named: Any) -> Any:
        other = self.backend_for(first_tensor(tensors), all_ranks=False)
        if other is None:
            return method(self, tensors, *args, **named)
        return torch_method(other, method.__name__)(tensors, *args, **named)

    return call


def torch_method(group: Any, name: str) -> Method:
    """The method `name` of one of torch's own groups, by the name that this torch version uses."""
    found: Method = getattr(group, name, None) or getattr(group, OLD_NAMES[name])
    return found


def first_tensor(given: Iterable[Any]) -> Tensor | None:
    """The first tensor in lists of lists."""
    for one in given:
        if isinstance(one, Tensor):
            return one
        if isinstance(one, list | tuple):
            found = first_tensor(one)
            if found is not None:
                return found
    return None


def _named(named: dict[str, Any], name: str) -> Any:
    """An argument given by its name; torch's names of bare tensors are the singular."""
    for key in (name, name.removesuffix("s")):
        if key in named:
            return named.pop(key)
    raise TypeError(f"missing argument: {name!r}")


def _options(kind: type, settings: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """The options as given, or fresh ones with the root, operator and timeout as given."""
    opts = named.pop("opts", None)
    fields: dict[str, Any] = {}
    for value in settings:
        if isinstance(value, timedelta):
            fields["timeout"] = value
        elif isinstance(value, int):
            fields["root"] = value
        elif isinstance(value, _OPERATORS):
            fields["op"] = value
        elif value is not None:
            opts = value
    opts = kind() if opts is None else opts
    for name, value in (fields | named).items():
        if name not in _FIELDS:
            raise TypeError(f"unexpected argument: {name!r}")
        if value is not None:
            setattr(opts, _FIELDS[name], value)
    return opts
