"""Communication hook by torch's convention: a (state, hook) pair for `register_comm_hook`.

    state, hook = gradwire.comm_hook("int8")
    model.register_comm_hook(state, hook)      # the same as gradwire.attach(model, "int8")
    print(state.handle.summary())

For frameworks that build the DDP model themselves and take a pair, such as Lightning's `ddp_comm_state` and
`ddp_comm_hook`. A hook learns of a model only with its first bucket, in the middle of a backward, and gradwire connects
the ranks before that: so DDP's `register_comm_hook` is wrapped once, and attaches where it is given such a state.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from gradwire.errors import ConfigError
from gradwire.integrations.ddp import attach
from gradwire.integrations.handle import Handle

Hook = Callable[[Any, GradBucket], Any]


class HookState:
    """The settings of `attach` for the model that this state is registered with, and then its handle."""

    def __init__(self, config: Any, settings: dict[str, Any]) -> None:
        self._config = config
        self._settings = settings
        self._handle: Handle | None = None

    @property
    def handle(self) -> Handle:
        """What `attach` returns; ConfigError before the state is registered."""
        if self._handle is None:
            raise ConfigError("comm_hook: not registered yet; call model.register_comm_hook(state, hook) first")
        return self._handle

    def attach_to(self, model: DistributedDataParallel) -> None:
        """Attach to the model that registers this state; a state is for one model."""
        if self._handle is not None:
            raise ConfigError("comm_hook: this state is registered with a model already; make a pair for each model")
        self._handle = attach(model, self._config, **self._settings)


def comm_hook(config: Any = None, **settings: Any) -> tuple[HookState, Hook]:
    """The pair of a state and a hook. Arguments are those of `attach`, without the model."""
    known = [name for name in inspect.signature(attach).parameters if name not in ("model", "config")]
    unknown = sorted(set(settings) - set(known))
    if unknown:
        raise ConfigError(f"comm_hook: unknown setting {unknown[0]!r}; use one of {', '.join(known)}")
    _wrap_registration()
    return HookState(config, settings), hook


def hook(state: Any, bucket: GradBucket) -> Any:
    """Stands for gradwire's hook where one is registered; DDP gets the one that `attach` makes, so this is not called
    unless somebody else calls DDP's C++ function with it."""
    raise ConfigError(
        "comm_hook: this hook was not registered through DistributedDataParallel.register_comm_hook; "
        "call gradwire.attach(model) instead"
    )


# DDP and frameworks check these annotations by identity, so they must be types and not strings.
hook.__annotations__ = {"state": Any, "bucket": GradBucket, "return": Future[Tensor]}


def _wrap_registration() -> None:
    """Wrap DDP's `register_comm_hook`, once in a process."""
    original = DistributedDataParallel.register_comm_hook
    if hasattr(original, "_gradwire_wraps"):
        return

    @functools.wraps(original)
    def register_comm_hook(self: DistributedDataParallel, state: object, hook: Hook) -> None:
        if isinstance(state, HookState):
            state.attach_to(self)
        else:
            original(self, state, hook)

    register_comm_hook._gradwire_wraps = True  # type: ignore[attr-defined]
    DistributedDataParallel.register_comm_hook = register_comm_hook  # type: ignore[method-assign]
