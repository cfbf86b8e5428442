"""Shard handle: the handle of a model whose weights are sharded inside a site; its state belongs to one shard."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.distributed.fsdp import FSDPModule

from gradwire.config import Config
from gradwire.errors import ConfigError
from gradwire.integrations.handle import Handle
from gradwire.integrations.local_handle import LocalParts, LocalStepsHandle
from gradwire.runtime.builder import BuiltSession


class _ShardState(Handle):
    """The state names its shard, and loads where the model has as many shards."""

    _shard: tuple[int, int]

    def state_dict(self) -> dict[str, Any]:
        """As without shards. Every rank saves its own."""
        return {**super().state_dict(), "shard": list(self._shard)}

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Load this rank's own state or, when the number of replicas changed, a list with those of its shard."""
        super().load_state_dict(state)

    def _facts_to_load(self, states: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        shards = ", ".join(sorted({_shard_name(_shard_of(one)) for one in states}))
        return {"the shard of the state to load": shards, **super()._facts_to_load(states)}

    def _check_to_load(self, states: Sequence[Mapping[str, Any]]) -> None:
        for one in states:
            if _shard_of(one) != self._shard:
                raise ConfigError(
                    f"load_state_dict: the state belongs to shard {_shard_name(_shard_of(one))}, this rank holds shard "
                    f"{_shard_name(self._shard)}; load each shard's own state, with as many shards as saved"
                )
        super()._check_to_load(states)


class ShardHandle(_ShardState):
    """Gradients are synchronised at every step."""

    def __init__(self, built: BuiltSession, config: Config, shard: tuple[int, int]) -> None:
        super().__init__(built, config)
        self._shard = shard


class LocalShardHandle(_ShardState, LocalStepsHandle):
    """With local steps. FSDP2 may keep gathered weights from one forward pass to the next, so they are freed wherever
    this handle changes the shards outside of the optimizer's step."""

    def __init__(
        self, built: BuiltSession, config: Config, parts: LocalParts, model: nn.Module, shard: tuple[int, int]
    ) -> None:
        super().__init__(built, config, parts)
        self._shard, self._model = shard, weakref.ref(model)

    def synchronise(self) -> None:
        super().synchronise()
        self._free_gathered()

    @contextmanager
    def global_weights(self) -> Iterator[None]:
        """As without shards. A forward pass inside needs every rank of the site."""
        with super().global_weights():
            self._free_gathered()
            try:
                yield
            finally:
                self._free_gathered()

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        super().load_state_dict(state)
        self._free_gathered()

    def detach(self) -> None:
        super().detach()
        self._free_gathered()

    def _free_gathered(self) -> None:
        model = self._model()
        for module in model.modules() if model is not None else ():
            if isinstance(module, FSDPModule):
                module.reshard()


def _shard_of(state: Mapping[str, Any]) -> tuple[int, int]:
    index, count = state.get("shard", (0, 1))
    return int(index), int(count)


def _shard_name(shard: tuple[int, int]) -> str:
    return f"{shard[0]} of {shard[1]}"
