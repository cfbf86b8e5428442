"""Model parameters: which parameters of a model are trained, and whether an optimizer steps exactly those.

In: a module and the names that DDP leaves out. A frozen parameter may be in the optimizer or not: it never changes.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.optim import Optimizer

from gradwire.errors import ConfigError

FIX = "pass the one optimizer that steps all of the model's parameters: attach(model, optimizer=opt, sync_every=...)"


@dataclass(frozen=True, slots=True)
class ModelParameters:
    """Tied weights count once, by their first name."""

    trained: dict[str, nn.Parameter]
    others: tuple[nn.Parameter, ...]

    @classmethod
    def of(cls, module: nn.Module, ignored: Container[str] = ()) -> ModelParameters:
        named = list(module.named_parameters())
        trained = {name: one for name, one in named if one.requires_grad and name not in ignored}
        return cls(trained, tuple(one for name, one in named if name not in trained))

    @property
    def numel(self) -> int:
        return sum(one.numel() for one in self.trained.values())

    def has_any(self, optimizer: Optimizer) -> bool:
        """Whether the optimizer steps any trained parameter."""
        ours = set(map(id, self.trained.values()))
        return any(id(one) in ours for group in optimizer.param_groups for one in group["params"])

    def check(self, optimizer: Optimizer) -> None:
        """ConfigError unless the optimizer steps all trained parameters, and none of another model."""
        kind = type(optimizer).__name__
        if isinstance(optimizer, ZeroRedundancyOptimizer):
            raise ConfigError(
                f"optimizer: {kind} exchanges weights at every step, which local steps avoid; use the optimizer that "
                "it wraps"
            )
        stepped = {id(one) for group in optimizer.param_groups for one in group["params"]}
        if stepped - set(map(id, self.trained.values())) - set(map(id, self.others)):
            raise ConfigError(
                f"optimizer: this {kind} also steps parameters that are not the model's, which sync_every would leave "
                f"different on every rank; {FIX}"
            )
        missing = [name for name, one in self.trained.items() if id(one) not in stepped]
        if missing:
            raise ConfigError(
                f"optimizer: this {kind} does not step {missing[0]!r} ({len(missing)} of {len(self.trained)} "
                f"parameters are missing); {FIX}, with several parameter groups if needed"
            )


def unwrapped(optimizer: object) -> Optimizer:
    """The torch optimizer; the one inside where a framework wrapped it (Accelerate)."""
    inner = getattr(optimizer, "optimizer", None)
    found = inner if isinstance(inner, Optimizer) else optimizer
    if not isinstance(found, Optimizer):
        raise ConfigError(f"optimizer: {type(optimizer).__name__} is not a torch optimizer; {FIX}")
    return found
