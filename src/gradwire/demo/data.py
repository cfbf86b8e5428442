"""Data of the demo: Fashion-MNIST if it is installed or named by --data-dir, otherwise digits from the package.

The digits are the test part of the UCI "Optical Recognition of Handwritten Digits" set (Alpaydin and Kaynak, 1998,
CC BY 4.0): 1,797 images of 8 x 8. Fashion-MNIST (MIT) is read from the original IDX files.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gradwire.errors import ConfigError

# The directory of Debian's package dataset-fashion-mnist.
INSTALLED = Path("/usr/share/datasets/fashion-mnist")


@dataclass(frozen=True, slots=True)
class Dataset:
    """Images as N x 1 x H x W floats with mean 0 and deviation 1, and their classes."""

    name: str
    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def choose(name: str = "", directory: Path | None = None) -> str:
    """The data set to use: `name`, or if empty Fashion-MNIST if `directory` has its IDX files, otherwise digits."""
    if name not in ("", "fashion-mnist", "digits"):
        raise ConfigError(f"data: unknown {name!r}; use fashion-mnist or digits")
    where = directory or INSTALLED
    there = (where / "train-images-idx3-ubyte.gz").is_file()
    if name == "fashion-mnist" and not there:
        raise ConfigError(
            f"data: no Fashion-MNIST in {where}; run apt-get install dataset-fashion-mnist, or give --data-dir DIR"
        )
    return name or ("fashion-mnist" if there else "digits")


def load(name: str = "", directory: Path | None = None) -> Dataset:
    """Read the data set that `choose` selects."""
    return _digits() if choose(name, directory) == "digits" else _fashion(directory or INSTALLED)


def _digits() -> Dataset:
    packed = resources.files("gradwire.demo").joinpath("digits.csv.gz").read_bytes()
    table = np.loadtxt(gzip.decompress(packed).decode().splitlines(), delimiter=",", dtype=np.float32)
    order = np.random.default_rng(0).permutation(len(table))
    table = table[order]
    images = torch.from_numpy(table[:, :64].copy()).view(-1, 1, 8, 8)
    labels = torch.from_numpy(table[:, 64].astype(np.int64))
    return _split("digits", images, labels, images[1400:], labels[1400:], 1400)


def _fashion(where: Path) -> Dataset:
    train = _idx(where / "train-images-idx3-ubyte.gz"), _idx(where / "train-labels-idx1-ubyte.gz")
    test = _idx(where / "t10k-images-idx3-ubyte.gz"), _idx(where / "t10k-labels-idx1-ubyte.gz")
    images, labels = train[0].unsqueeze(1).float(), train[1].long()
    return _split("fashion-mnist", images, labels, test[0].unsqueeze(1).float(), test[1].long(), len(images))


def _split(name: str, images: Tensor, labels: Tensor, test: Tensor, test_labels: Tensor, count: int) -> Dataset:
    mean, deviation = images[:count].mean(), images[:count].std()
    normal = (images[:count] - mean) / deviation, (test - mean) / deviation
    return Dataset(name, normal[0], labels[:count], normal[1], test_labels)


def _idx(path: Path) -> Tensor:
    """An IDX file: two zero bytes, a type (8: bytes), the number of dimensions, the dimensions, the data."""
    data = gzip.decompress(path.read_bytes())
    if data[:3] != b"\0\0\x08":
        raise ConfigError(f"data: {path} is not an IDX file of bytes; download it again")
    shape = [int.from_bytes(data[4 + 4 * i : 8 + 4 * i], "big") for i in range(data[3])]
    return torch.from_numpy(np.frombuffer(data, np.uint8, offset=4 + 4 * len(shape)).reshape(shape).copy())
