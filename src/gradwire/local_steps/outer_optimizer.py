"""Outer optimizer: steps the global weights by the mean pseudo-gradient of a round.

    nesterov   SGD with Nesterov momentum (DiLoCo's), the default
    average    the global weights become the mean of the ranks' weights (local SGD)

or any torch optimizer, by a function that makes it for given parameters. Its state is the same on all ranks: it steps
the same weights by the same gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import nn
from torch.optim import SGD, Optimizer

from gradwire.config import OuterConfig
from gradwire.errors import ConfigError

OuterFactory = Callable[[Sequence[nn.Parameter]], Optimizer]


def make_outer(config: OuterConfig, factory: OuterFactory | None, parameters: Sequence[nn.Parameter]) -> Optimizer:
    """The configured optimizer over the global weights, or the factory's."""
    if factory is not None:
        return _checked(factory(parameters), parameters)
    if config.kind == "average":
        return SGD(parameters, lr=1.0)
    return SGD(parameters, lr=config.lr, momentum=config.momentum, nesterov=config.momentum > 0)


def name_of(config: OuterConfig, factory: OuterFactory | None) -> str:
    """What ranks compare; a factory by its name."""
    if factory is not None:
        return str(getattr(factory, "__qualname__", type(factory).__name__))
    return "average" if config.kind == "average" else f"nesterov, lr {config.lr:g}, momentum {config.momentum:g}"


def _checked(made: object, parameters: Sequence[nn.Parameter]) -> Optimizer:
    if not isinstance(made, Optimizer):
        raise ConfigError(
            f"outer: the function returned {type(made).__name__}, not a torch optimizer; write for example "
            "outer=lambda parameters: torch.optim.SGD(parameters, lr=0.7, momentum=0.6, nesterov=True)"
        )
    stepped = {id(one) for group in made.param_groups for one in group["params"]}
    if stepped != set(map(id, parameters)):
        raise ConfigError("outer: the optimizer must step exactly the parameters that the function is given")
    return made
