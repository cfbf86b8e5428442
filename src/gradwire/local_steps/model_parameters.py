"""Model parameters: which parameters of a model are trained, and whether its optimizers step exactly those.

In: a module and the names that DDP leaves out. A frozen parameter may be in the optimizer or not: it never changes.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.optim import Optimizer

from gradwire.errors import ConfigError

FIX = (
    "pass the optimizer that steps all of the model's parameters: attach(model, optimizer=opt, sync_every=...); if "
    "there are several, all of them: optimizer=[first, second]"
)


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
    def on_cpu(self) -> bool:
        return all(one.device.type == "cpu" for one in self.trained.values())

    @property
    def numel(self) -> int:
        return sum(one.numel() for one in self.trained.values())

    def has_any(self, optimizer: Optimizer) -> bool:
        """Whether the optimizer steps any trained parameter."""
        ours = set(map(id, self.trained.values()))
        return any(id(one) in ours for group in optimizer.param_groups for one in group["params"])

    def check(self, *optimizers: Optimizer) -> None:
        """ConfigError unless the optimizers together step all trained parameters, and none of another model."""
        stepped = set[int]()
        for one in optimizers:
            stepped |= self._stepped(one)
        kinds = " and ".join(f"this {type(one).__name__}" for one in optimizers)
        missing = [name for name, one in self.trained.items() if id(one) not in stepped]
        if missing:
            raise ConfigError(
                f"optimizer: {kinds} {'does' if len(optimizers) == 1 else 'do'} not step {missing[0]!r} "
                f"({len(missing)} of {len(self.trained)} parameters are missing); {FIX}"
            )

    def _stepped(self, optimizer: Optimizer) -> set[int]:
        """The ids of what the optimizer steps; ConfigError where that is not the model's alone."""
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
        return stepped


def optimizers_of(given: object) -> list[Optimizer]:
    """The torch optimizers that were given: one, or several in a list."""
    several = list(given) if isinstance(given, list | tuple) else [given]
    return list(dict.fromkeys(map(unwrapped, several)))


def unwrapped(optimizer: object) -> Optimizer:
    """The torch optimizer; the one inside where a framework wrapped it (Accelerate)."""
    inner = getattr(optimizer, "optimizer", None)
    found = inner if isinstance(inner, Optimizer) else optimizer
    if not isinstance(found, Optimizer):
        raise ConfigError(f"optimizer: {type(optimizer).__name__} is not a torch optimizer; {FIX}")
    return found
