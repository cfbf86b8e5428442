"""Tasks of the progress benchmark: what is trained, with which optimizer.

    gpt        a character GPT of two layers, Shakespeare                AdamW 1e-3
    cnn-0.05   the demo's CNN, Fashion-MNIST                             SGD 0.05, momentum 0.9
    cnn-0.1    the same                                                  SGD 0.1, momentum 0.9
    resnet     a ResNet of 16, 32, 64 channels, CIFAR-10                 SGD 0.1, momentum 0.9, cosine to zero
    mlp        three linear layers, Fashion-MNIST                        Adam 1e-3

None has a warm-up of its own. Without a directory the package's built-in data are used, and resnet is left out.

Other jobs are written MODEL-OPTIMIZER: `gpt-sgd:0.05:0.9`, `cnn-adam:0.001`; a number alone is a rate of SGD with
momentum 0.9. `deep` is another model, six linear layers: no constant of gradwire was fitted to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from gradwire.errors import ConfigError
from gradwire.simulate.tasks import Batches, OptimizerSpec, TrainingTask, make_task, with_optimizer
from harness.models import Basic
from harness.tasks import cifar10

TASKS: Final = ("gpt", "cnn-0.05", "cnn-0.1", "resnet", "mlp")
NEED_DATA: Final = ("resnet",)
# Images of a task's training set: more than 1,000 steps of 4 workers use.
SAMPLES: Final = 40_000
# Per worker. The two tasks that compute most have half the others' batch, for the sake of the benchmark's length.
BATCHES: Final = {"gpt": 8, "cnn": 16, "resnet": 8, "mlp": 16, "deep": 16}


@cache
def task_of(name: str, steps: int, directory: Path | None) -> TrainingTask:
    """A task for a run of so many steps, to which its schedule is fitted."""
    model, _, optimizer = name.partition("-")
    if model not in BATCHES:
        raise ConfigError(f"tasks: {name!r} is not one of {', '.join((*TASKS, *BATCHES))}, or MODEL-OPTIMIZER")
    task = _made(model, steps, directory)
    spec = optimizer if ":" in optimizer else f"sgd:{optimizer}:0.9"
    return replace(with_optimizer(task, spec) if optimizer else task, name=name)


def _made(model: str, steps: int, directory: Path | None) -> TrainingTask:
    if model == "resnet":
        return _resnet(steps, directory)
    if model == "deep":
        return _deep(directory)
    return make_task(model, directory, BATCHES[model])


def _deep(directory: Path | None) -> TrainingTask:
    task = make_task("mlp", directory, BATCHES["deep"])
    pixels = task.held_out[0][0].numel()

    def module() -> nn.Module:
        widths = [pixels, 192, 192, 192, 192, 192]
        layers = [one for pair in pairwise(widths) for one in (nn.Linear(*pair), nn.ReLU())]
        return nn.Sequential(nn.Flatten(), *layers, nn.Linear(192, 10))

    return replace(task, module=module, compute=0.02)


def _resnet(steps: int, directory: Path | None) -> TrainingTask:
    images, labels, test, truth = cifar10(directory, SAMPLES)

    def module() -> nn.Module:
        stem = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True)]
        blocks = [Basic(16, 16, 1), Basic(16, 32, 2), Basic(32, 64, 2)]
        return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))

    return TrainingTask(
        "resnet", module, _shuffled(images, labels, BATCHES["resnet"]), (test[:2000], truth[:2000]),
        OptimizerSpec("sgd", 0.1, 0.9), compute=0.05, cosine=steps,
    )  # fmt: skip


def _shuffled(images: Tensor, labels: Tensor, batch: int) -> Callable[[int, int, int], Batches]:
    def batches(seed: int, rank: int, world_size: int) -> Batches:
        generator = torch.Generator().manual_seed(seed)
        steps = len(images) // (batch * world_size)
        while True:
            order = torch.randperm(len(images), generator=generator)[: steps * batch * world_size]
            for chosen in order.view(steps, world_size, batch)[:, rank]:
                yield images[chosen], labels[chosen]

    return batches
