"""Paced: a module with a recorded model's parameters whose backward takes a stated time and emits synthetic gradients.

It is an ordinary nn.Module under ordinary DDP, so every communication hook works on it unchanged. Backward sleeps for
each layer's share of the compute time, as long as a GPU would work, so that 8 ranks fit on 2 cores.

A layer's gradient at a step is   signal + scale * noise   where the signal is the same on all ranks and drifts slowly,
the noise is each rank's own and new at every step, both are log-normal mixtures of Gaussians with the recorded spread
of ln |g|. It has the sizes, scales and tails of the recording but no information: use it for time and bytes, never for
accuracy.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from harness.recorded import Recorded, load

# A Gaussian's own standard deviation of ln |g|; the rest of a recorded tail comes from the log-normal factor.
GAUSSIAN_TAIL = math.pi / math.sqrt(8)
# Root mean square of the noise against the signal: gradients of small batches are mostly noise.
NOISE = 2.0
# A layer's signal moves by this share once in DRIFT_TURNS steps; one layer in DRIFT_TURNS moves at each step.
DRIFT, DRIFT_TURNS = 0.1, 8
POOL = 1 << 20
# Compute time of forward and backward: forward takes a third.
FORWARD_SHARE = 1 / 3

# Milliseconds for forward and backward on one GPU: assumptions, stated with every result; --compute-ms overrides.
COMPUTE_MS = {
    "resnet18": (75.0, "V100-class GPU, fp32, batch 128 of CIFAR (about 30 s an epoch)"),
    "vgg16": (40.0, "V100-class GPU, fp32, batch 128 of CIFAR"),
    "resnet50": (190.0, "V100-class GPU, fp32, batch 128 of CIFAR (2.3x ResNet-18's multiplications)"),
    "chargpt": (36.0, "A100, batch 64 x 256 (5,000 steps in 3 minutes)"),
}


class Source:
    """Emits each layer's gradient of the current step."""

    def __init__(self, parameters: Sequence[Recorded], rank: int) -> None:
        common = torch.Generator().manual_seed(7)
        own = torch.Generator().manual_seed(100 + rank)
        self._draw = own
        self._rows = parameters
        self._signals = [_mixture(row.numel, row.tail, common).mul_(row.scale / (1 + NOISE)) for row in parameters]
        tail = sum(row.tail * row.numel for row in parameters) / sum(row.numel for row in parameters)
        longest = max(row.numel for row in parameters)
        self._pool = _mixture(longest + POOL, tail, own)
        self._drift = _mixture(longest + POOL, tail, common)
        self._shared_draw = common
        self.step = 0

    def write(self, index: int, out: Tensor) -> None:
        """Put the gradient of parameter `index` into `out`."""
        row, signal = self._rows[index], self._signals[index]
        if index % DRIFT_TURNS == self.step % DRIFT_TURNS:
            # Every rank writes the layers in the same order, so the common generator stays equal on all ranks.
            drift = _window(self._drift, row.numel, self._shared_draw)
            signal.mul_(math.sqrt(1 - DRIFT**2)).add_(drift, alpha=DRIFT * row.scale / (1 + NOISE))
        noise = _window(self._pool, row.numel, self._draw)
        torch.add(signal, noise, alpha=row.scale * NOISE / (1 + NOISE), out=out.view(-1))


def _mixture(numel: int, tail: float, generator: torch.Generator) -> Tensor:
    """Root mean square 1; ln |g| spreads by `tail`."""
    sigma = math.sqrt(max(tail**2 - GAUSSIAN_TAIL**2, 0.0))
    spread = torch.randn(numel, generator=generator).mul_(sigma).sub_(sigma**2).exp_()
    return spread.mul_(torch.randn(numel, generator=generator))


def _window(pool: Tensor, numel: int, generator: torch.Generator) -> Tensor:
    start = int(torch.randint(len(pool) - numel + 1, (1,), generator=generator))
    return pool[start : start + numel]


class _Layer(torch.autograd.Function):
    """Forward returns its input; backward sleeps and returns gradients.

    Gradients of a GPU cost the CPU nothing, so these should cost little: from the second step on they are written into
    DDP's bucket (`grad` is a view of it), and autograd adds a zero.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: PacedLayer, *parameters: Tensor) -> Tensor:
        ctx.layer = layer
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        layer: PacedLayer = ctx.layer
        if layer.seconds:
            time.sleep(layer.seconds)
        return (grads[0], None, *map(layer.gradient, layer.indices, layer.weights))


class PacedLayer(nn.Module):
    """The parameters of one layer (weight, bias) and the seconds its backward takes."""

    def __init__(self, rows: Sequence[Recorded], indices: Sequence[int], seconds: float, source: Source) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.zeros(row.shape)) for row in rows])
        self.indices, self.seconds, self.source = tuple(indices), seconds, source
        self.zero = torch.zeros(())

    def gradient(self, index: int, parameter: Tensor) -> Tensor:
        if parameter.grad is None:
            fresh = torch.empty_like(parameter)
            self.source.write(index, fresh)
            return fresh
        self.source.write(index, parameter.grad)
        return self.zero.expand_as(parameter)

    def forward(self, x: Tensor) -> Tensor:
        return _Layer.apply(x, self, *self.weights)  # type: ignore[no-any-return, no-untyped-call]


class Paced(nn.Module):
    """The whole model; `forward` sleeps its share of the compute time, `backward` the rest."""

    def __init__(self, model: str, source: Source, compute_seconds: float) -> None:
        super().__init__()
        rows = load(model)
        self.forward_seconds = compute_seconds * FORWARD_SHARE
        backward = compute_seconds - self.forward_seconds
        total = sum(row.flops for row in rows)
        groups = _layers(rows)
        self.layers = nn.ModuleList(
            PacedLayer([rows[i] for i in group], group, backward * sum(rows[i].flops for i in group) / total, source)
            for group in groups
        )

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(self.forward_seconds)
        x = x.clone().requires_grad_()
        for layer in self.layers:
            x = layer(x)
        return x


def _layers(rows: Sequence[Recorded]) -> list[list[int]]:
    """Indices of the parameters that belong to one module, in order."""
    groups: dict[str, list[int]] = {}
    for index, row in enumerate(rows):
        groups.setdefault(row.name.rpartition(".")[0], []).append(index)
    return list(groups.values())
