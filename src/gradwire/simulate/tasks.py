"""Tasks: small training jobs for virtual time, each with its model, data, optimizer and compute time.

    gpt      a character GPT of two layers                        AdamW 1e-3
    cnn      the demo's CNN                                       SGD 0.05, momentum 0.9
    resnet   a ResNet of three narrow stages                      SGD 0.1, momentum 0.9, cosine
    mlp      three linear layers                                  Adam 1e-3

Data come with the package: the text of gradwire's own modules, and the demo's digits. With a directory, Shakespeare
(tinyshakespeare/input.txt) and Fashion-MNIST (fashion-mnist/) are used instead. Other jobs can be given as
`module:function`, a function that returns a TrainingTask.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from gradwire.demo.data import Dataset, load
from gradwire.demo.train import ConvNet
from gradwire.errors import ConfigError

Batches = Iterator[tuple[Tensor, Tensor]]
CONTEXT: Final = 64
HELD_OUT: Final = 512


class OptimizerSpec(NamedTuple):
    """Name (sgd, adam, adamw), learning rate and, for SGD, momentum."""

    name: str
    rate: float
    momentum: float = 0.0

    @classmethod
    def parse(cls, text: str) -> OptimizerSpec:
        """Read "adamw:0.001" or "sgd:0.05:0.9"."""
        name, *numbers = text.lower().split(":")
        try:
            values = [float(number) for number in numbers]
            if name not in ("sgd", "adam", "adamw") or not 1 <= len(values) <= (2 if name == "sgd" else 1):
                raise ValueError
            if not values[0] > 0 or not all(0 <= one < 1 for one in values[1:]):
                raise ValueError
        except ValueError:
            raise ConfigError(
                f"optimizer: {text!r} is not valid; write adamw:RATE, adam:RATE or sgd:RATE:MOMENTUM"
            ) from None
        return cls(name, *values)

    def build(self, parameters: list[Tensor]) -> Optimizer:
        if self.name == "sgd":
            return torch.optim.SGD(parameters, lr=self.rate, momentum=self.momentum)
        return (torch.optim.AdamW if self.name == "adamw" else torch.optim.Adam)(parameters, lr=self.rate)


def _cross_entropy(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    scores: Tensor = model(inputs)
    return F.cross_entropy(scores.reshape(-1, scores.shape[-1]), labels.reshape(-1))


@dataclass(frozen=True, slots=True)
class TrainingTask:
    """`compute` is a step's time without the network, in virtual seconds; `cosine` the steps after which the learning
    rate has fallen to zero (0: constant); `clip` the gradient's greatest norm."""

    name: str
    module: Callable[[], nn.Module]
    batches: Callable[[int, int, int], Batches]
    held_out: tuple[Tensor, Tensor]
    optimizer_spec: OptimizerSpec
    compute: float
    cosine: int = 0
    clip: float | None = None
    loss: Callable[[nn.Module, Tensor, Tensor], Tensor] = field(default=_cross_entropy)

    def optimizer(self, parameters: list[Any]) -> Optimizer:
        return self.optimizer_spec.build(parameters)

    def schedule(self, optimizer: Optimizer) -> LRScheduler:
        if not self.cosine:
            return LambdaLR(optimizer, lambda step: 1.0)
        return LambdaLR(optimizer, lambda step: 0.5 * (1 + math.cos(math.pi * min(1.0, step / self.cosine))))

    def before_step(self, parameters: list[Any]) -> None:
        if self.clip is not None:
            nn.utils.clip_grad_norm_(parameters, self.clip)


def make_task(name: str, directory: Path | None = None, batch: int = 16) -> TrainingTask:
    """A task by name, or what `module:function` returns; ConfigError names the choices."""
    makers = {"gpt": _gpt, "cnn": _cnn, "resnet": _resnet, "mlp": _mlp, "mlp-wide": _wide_mlp}
    if name in makers:
        return makers[name](directory, batch)
    if ":" in name:
        return _imported(name)
    raise ConfigError(f"train: {name!r} is not one of {', '.join(makers)}, or module:function")


def with_optimizer(task: TrainingTask, text: str) -> TrainingTask:
    return replace(task, optimizer_spec=OptimizerSpec.parse(text))


def _imported(name: str) -> TrainingTask:
    module, _, function = name.partition(":")
    try:
        made = getattr(importlib.import_module(module), function)()
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"train: cannot import {name!r}: {error}") from error
    if not isinstance(made, TrainingTask):
        raise ConfigError(
            f"train: {name} returned {type(made).__name__}; return a gradwire.simulate.tasks.TrainingTask"
        )
    return made


class CharGpt(nn.Module):
    """Two transformer blocks over single characters."""

    def __init__(self, characters: int, width: int = 128, layers: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.characters = nn.Embedding(characters, width)
        self.positions = nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(_GptBlock(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, characters, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, text: Tensor) -> Tensor:
        x = self.characters(text) + self.positions(torch.arange(text.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.out(self.norm(x))  # type: ignore[no-any-return]


class _GptBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.first(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.second(x))))  # type: ignore[no-any-return]


def _gpt(directory: Path | None, batch: int) -> TrainingTask:
    path = directory / "tinyshakespeare" / "input.txt" if directory else None
    text = path.read_text() if path is not None and path.is_file() else own_text()
    characters = sorted(set(text))
    place = {character: index for index, character in enumerate(characters)}
    data = torch.tensor([place[character] for character in text])
    split = int(0.9 * len(data))
    train, rest = data[:split], data[split:]

    def windows(source: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        rows = source[starts.unsqueeze(1) + torch.arange(CONTEXT + 1)]
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

    def batches(seed: int, rank: int, world_size: int) -> Batches:
        generator = torch.Generator().manual_seed(1000 * seed + rank)
        while True:
            yield windows(train, torch.randint(len(train) - CONTEXT - 1, (batch,), generator=generator))

    even = torch.linspace(0, len(rest) - CONTEXT - 2, HELD_OUT // 4).long()
    spec = OptimizerSpec("adamw", 1e-3)
    return TrainingTask("gpt", lambda: CharGpt(len(characters)), batches, windows(rest, even), spec, compute=0.05)


def own_text() -> str:
    """The text of gradwire's own modules: some hundred thousand characters that every installation has."""
    root = resources.files("gradwire")
    parts = [
        entry.read_text()
        for folder in ("compress", "decide", "exchange", "plan", "runtime", "sense", "sites", "transport", "tree")
        for entry in sorted(root.joinpath(folder).iterdir(), key=lambda one: one.name)
        if entry.name.endswith(".py")
    ]
    return "".join(character for character in "".join(parts) if character.isascii())


def _images(directory: Path | None) -> Dataset:
    folder = directory / "fashion-mnist" if directory else None
    found = folder is not None and (folder / "train-images-idx3-ubyte.gz").is_file()
    return load("fashion-mnist", folder) if found else load("digits")


def _shuffled(images: Tensor, labels: Tensor, batch: int) -> Callable[[int, int, int], Batches]:
    def batches(seed: int, rank: int, world_size: int) -> Batches:
        generator = torch.Generator().manual_seed(seed)
        per_epoch = len(images) // (batch * world_size)
        while True:
            order = torch.randperm(len(images), generator=generator)[: per_epoch * batch * world_size]
            for indices in order.view(per_epoch, world_size, batch)[:, rank]:
                yield images[indices], labels[indices]

    return batches


def _image_task(name: str, directory: Path | None, batch: int) -> tuple[Dataset, dict[str, Any]]:
    data = _images(directory)
    held_out = data.test_images[: 2 * HELD_OUT], data.test_labels[: 2 * HELD_OUT]
    batches = _shuffled(data.train_images, data.train_labels, batch)
    return data, {"name": name, "batches": batches, "held_out": held_out}


def _cnn(directory: Path | None, batch: int) -> TrainingTask:
    data, common = _image_task("cnn", directory, batch)
    side = data.train_images.shape[-1]
    spec = OptimizerSpec("sgd", 0.05, 0.9)
    return TrainingTask(module=lambda: ConvNet(side), optimizer_spec=spec, compute=0.03, **common)


def _mlp(directory: Path | None, batch: int, name: str = "mlp", width: int = 256) -> TrainingTask:
    data, common = _image_task(name, directory, batch)
    pixels = data.train_images[0].numel()

    def module() -> nn.Module:
        layers = [nn.Linear(pixels, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)]
        return nn.Sequential(nn.Flatten(), *layers)

    return TrainingTask(module=module, optimizer_spec=OptimizerSpec("adam", 1e-3), compute=0.01, **common)


def _wide_mlp(directory: Path | None, batch: int) -> TrainingTask:
    """With built-in data 0.8 million parameters, as many as the model that networks are tried with in the lab."""
    return _mlp(directory, batch, "mlp-wide", 860)


class _Residual(nn.Module):
    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.GroupNorm(4, out) for _ in range(2))
        same = stride == 1 and channels == out
        self.skip = nn.Identity() if same else nn.Conv2d(channels, out, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.skip(x) + self.norms[1](self.second(inner)))


def _resnet(directory: Path | None, batch: int) -> TrainingTask:
    _, common = _image_task("resnet", directory, batch)

    def module() -> nn.Module:
        stem = [nn.Conv2d(1, 16, 3, 1, 1, bias=False), nn.GroupNorm(4, 16), nn.ReLU()]
        blocks = [_Residual(16, 16, 1), _Residual(16, 32, 2), _Residual(32, 64, 2)]
        return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))

    spec = OptimizerSpec("sgd", 0.1, 0.9)
    return TrainingTask(module=module, optimizer_spec=spec, compute=0.05, cosine=1000, **common)
