"""Data: batches of real data from a directory, or random ones of the same shape if it has none (the name says which).

Files under the directory: cifar10/ (sheets of 10,000 JPEG tiles beside their labels), tinyshakespeare/*.txt,
fashion-mnist/ (IDX files). Each rank draws its own batches from its own seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from harness.models import CHARACTERS, CONTEXT

Batches = Iterator[tuple[Tensor, Tensor]]


def batches(model: str, directory: Path | None, batch: int, rank: int) -> tuple[str, Batches]:
    """The name of the data, and an endless iterator of (inputs, labels)."""
    generator = torch.Generator().manual_seed(1000 + rank)
    if model == "chargpt":
        return _text(directory, batch, generator)
    images, labels, name = _fashion(directory) if model == "cnn" else _cifar(directory)
    return name, _draw(images, labels, batch, generator)


def _draw(images: Tensor, labels: Tensor, batch: int, generator: torch.Generator) -> Batches:
    while True:
        chosen = torch.randint(len(images), (batch,), generator=generator)
        yield images[chosen], labels[chosen]


def _random(shape: tuple[int, ...], what: str) -> tuple[Tensor, Tensor, str]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn((512, *shape), generator=generator)
    return images, torch.randint(10, (512,), generator=generator), f"random images of {what}'s shape"


def _cifar(directory: Path | None) -> tuple[Tensor, Tensor, str]:
    folder = None if directory is None else directory / "cifar10"
    if folder is None or not (folder / "train_0.jpg").is_file():
        return _random((3, 32, 32), "CIFAR-10")
    from PIL import Image

    sheet = np.asarray(Image.open(folder / "train_0.jpg"))
    tiles = sheet.reshape(100, 32, 100, 32, 3).transpose(0, 2, 4, 1, 3).reshape(10000, 3, 32, 32)
    images = torch.from_numpy(np.ascontiguousarray(tiles)).float().div_(255).sub_(0.47).div_(0.25)
    labels = np.fromfile(folder / "train_labels.u8", np.uint8)[:10000]
    return images, torch.from_numpy(labels.astype(np.int64)), "CIFAR-10 (first 10,000)"


def _fashion(directory: Path | None) -> tuple[Tensor, Tensor, str]:
    from gradwire.demo.data import INSTALLED, load

    folders = [INSTALLED] if directory is None else [directory / "fashion-mnist", INSTALLED]
    for folder in folders:
        if (folder / "train-images-idx3-ubyte.gz").is_file():
            data = load("fashion-mnist", folder)
            return data.train_images, data.train_labels, data.name
    return _random((1, 28, 28), "Fashion-MNIST")


def _text(directory: Path | None, batch: int, generator: torch.Generator) -> tuple[str, Batches]:
    found = sorted((directory / "tinyshakespeare").glob("*.txt")) if directory else []
    if found:
        text = found[0].read_text()
        codes = {character: index for index, character in enumerate(sorted(set(text)))}
        tokens = torch.tensor([codes[character] % CHARACTERS for character in text])
        return "tiny Shakespeare", _windows(tokens, batch, generator)
    tokens = torch.randint(CHARACTERS, (100_000,), generator=torch.Generator().manual_seed(0))
    return "random characters", _windows(tokens, batch, generator)


def _windows(tokens: Tensor, batch: int, generator: torch.Generator) -> Batches:
    while True:
        starts = torch.randint(len(tokens) - CONTEXT - 1, (batch, 1), generator=generator)
        windows = tokens[starts + torch.arange(CONTEXT + 1)]
        yield windows[:, :-1], windows[:, 1:].flatten()
