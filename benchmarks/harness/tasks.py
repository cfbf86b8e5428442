"""Tasks: small models that 2 cores can train to a comparable score, each with its data and its score function.

    cnn      the demo's CNN on Fashion-MNIST        test accuracy in points
    resnet   a ResNet of 3 narrow stages, CIFAR-10  test accuracy in points
    gpt      a GPT of 2 narrow layers, Shakespeare  bits per character of unseen text, times -1

The seed sets the order of the data, and ranks take turns in it, so every level of a seed gets the same batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradwire.demo.data import load
from gradwire.demo.train import ConvNet, accuracy
from gradwire.errors import ConfigError
from harness.models import CHARACTERS, CONTEXT, Basic, CharGpt

Batches = Iterator[tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True)
class Task:
    """`epoch(seed, rank, world, batch)` yields one rank's batches; a higher `score` is better.

    `rate` is the learning rate's peak, `clip` the gradient's greatest norm.
    """

    name: str
    about: str
    unit: str
    rate: float
    clip: float | None
    module: Callable[[], nn.Module]
    epoch: Callable[[int, int, int, int], Batches]
    score: Callable[[nn.Module], float]


def task(name: str, directory: Path | None, samples: int) -> Task:
    """One of cnn, resnet, gpt; `samples` are the images, or windows of text, of an epoch."""
    makers = {"cnn": _cnn, "resnet": _resnet, "gpt": _gpt}
    if name not in makers:
        raise ConfigError(f"task: {name!r} is not one of {', '.join(makers)}")
    return makers[name](directory, samples)


def _cnn(directory: Path | None, samples: int) -> Task:
    data = load("fashion-mnist", directory / "fashion-mnist" if directory else None)
    images, labels = data.train_images[:samples], data.train_labels[:samples]

    def score(module: nn.Module) -> float:
        return 100 * accuracy(module, data.test_images, data.test_labels)

    about = f"the demo's CNN on Fashion-MNIST, {len(images)} images an epoch"
    return Task("cnn", about, "% correct", 0.05, None, lambda: ConvNet(28), _shuffled(images, labels), score)


def narrow_resnet() -> nn.Module:
    """8, 16 and 32 channels, one block each: 20 thousand parameters."""
    stem = [nn.Conv2d(3, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True)]
    blocks = [Basic(8, 8, 1), Basic(8, 16, 2), Basic(16, 32, 2)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


def _resnet(directory: Path | None, samples: int) -> Task:
    images, labels, test, truth = cifar10(directory, samples)

    def score(module: nn.Module) -> float:
        return 100 * accuracy(module.eval(), test, truth)

    about = f"a ResNet of 8, 16, 32 channels on CIFAR-10, {len(images)} images an epoch"
    return Task("resnet", about, "% correct", 0.1, None, narrow_resnet, _shuffled(images, labels), score)


def cifar10(directory: Path | None, samples: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`samples` training images and their labels, all test images and theirs; ConfigError if the files are missing."""
    folder = (directory or Path()) / "cifar10"
    if not (folder / "train_0.jpg").is_file():
        raise ConfigError(f"task resnet: no cifar10/ in {directory or Path()}; name its parent directory by --data-dir")
    images = torch.cat([_sheet(folder / f"train_{part}.jpg") for part in range((samples + 9_999) // 10_000)])[:samples]
    labels = _labels(folder / "train_labels.u8")[: len(images)]
    return images, labels, _sheet(folder / "test.jpg"), _labels(folder / "test_labels.u8")


def _sheet(path: Path) -> Tensor:
    """10,000 images, tiled 100 x 100."""
    from PIL import Image

    tiles = np.asarray(Image.open(path)).reshape(100, 32, 100, 32, 3).transpose(0, 2, 4, 1, 3).reshape(10000, 3, 32, 32)
    return torch.from_numpy(np.ascontiguousarray(tiles)).float().div_(255).sub_(0.47).div_(0.25)


def _labels(path: Path) -> Tensor:
    return torch.from_numpy(np.fromfile(path, np.uint8).astype(np.int64))


def _shuffled(images: Tensor, labels: Tensor) -> Callable[[int, int, int, int], Batches]:
    def epoch(seed: int, rank: int, world: int, batch: int) -> Batches:
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
        steps = len(images) // (world * batch)
        for chosen in order[: steps * world * batch].view(steps, world, batch)[:, rank]:
            yield images[chosen], labels[chosen]

    return epoch


def _gpt(directory: Path | None, samples: int) -> Task:
    path = (directory or Path()) / "tinyshakespeare" / "input.txt"
    if not path.is_file():
        raise ConfigError(
            f"task gpt: no tinyshakespeare/input.txt in {directory or Path()}; name the parent directory by --data-dir"
        )
    text = path.read_text()
    codes = {character: index for index, character in enumerate(sorted(set(text)))}
    tokens = torch.tensor([codes[character] % CHARACTERS for character in text])
    train, unseen = tokens[: int(0.9 * len(tokens))], tokens[int(0.9 * len(tokens)) :]

    def epoch(seed: int, rank: int, world: int, batch: int) -> Batches:
        generator = torch.Generator().manual_seed(seed)
        for _ in range(samples // (world * batch)):
            starts = torch.randint(len(train) - CONTEXT - 1, (world, batch, 1), generator=generator)[rank]
            windows = train[starts + torch.arange(CONTEXT + 1)]
            yield windows[:, :-1], windows[:, 1:].flatten()

    def score(module: nn.Module) -> float:
        windows = unseen[: len(unseen) // (CONTEXT + 1) * (CONTEXT + 1)].view(-1, CONTEXT + 1)[:512]
        with torch.no_grad():
            loss = F.cross_entropy(module(windows[:, :-1]), windows[:, 1:].flatten())
        return -float(loss) / float(np.log(2))

    about = f"a GPT of 2 layers of width 96 on tiny Shakespeare, {samples} windows of {CONTEXT} characters an epoch"
    return Task("gpt", about, "- bits per character", 0.3, 1.0, lambda: CharGpt(2, 96, 4), epoch, score)
