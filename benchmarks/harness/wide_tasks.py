"""Wide tasks: jobs of a chosen width, batch and number of workers, for what may depend on them. `gpt-256b4` has width
256, and each of two workers a batch of 4; `gpt-128b4x8` has eight workers.

    gpt         gradwire's character GPT
    words       the same GPT over words: an embedding and an output layer of 8,192 rows
    lstm        an LSTM over characters
    mlp         three linear layers, images
    regression  two linear layers that learn a random network of the same shape, 512 to WIDTH to 512: inputs and errors
                are noise without structure, so no low rank holds its gradients
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradwire.simulate.tasks import CONTEXT, Batches, CharGpt, OptimizerSpec, TrainingTask, make_task, own_text

WORDS: Final = 8192
OUTPUTS: Final = 512
WORKERS: Final = 2
ADAM: Final = OptimizerSpec("adamw", 1e-3)


class SizedTask(NamedTuple):
    task: TrainingTask
    workers: int


def sized_task(name: str, directory: Path | None) -> SizedTask:
    """A wide task by its name, or one of gradwire's own with two workers."""
    found = re.fullmatch(r"([a-z]+)-(\d+)b(\d+)(?:x(\d+))?", name)
    if found is None:
        return SizedTask(make_task(name, directory), WORKERS)
    makers = {"gpt": _gpt, "words": _words, "lstm": _lstm, "mlp": _mlp, "regression": _regression}
    task = makers[found[1]](directory, int(found[2]), int(found[3]))
    return SizedTask(task, int(found[4] or WORKERS))


class CharLstm(nn.Module):
    def __init__(self, characters: int, width: int) -> None:
        super().__init__()
        self.characters, self.out = nn.Embedding(characters, width), nn.Linear(width, characters)
        self.lstm = nn.LSTM(width, width, batch_first=True)

    def forward(self, text: Tensor) -> Tensor:
        return self.out(self.lstm(self.characters(text))[0])  # type: ignore[no-any-return]


def _gpt(directory: Path | None, width: int, batch: int) -> TrainingTask:
    return _over_characters(lambda characters: CharGpt(characters, width), directory, batch)


def _lstm(directory: Path | None, width: int, batch: int) -> TrainingTask:
    return _over_characters(lambda characters: CharLstm(characters, width), directory, batch)


def _over_characters(model: Callable[[int], nn.Module], directory: Path | None, batch: int) -> TrainingTask:
    task = make_task("gpt", directory, batch)
    characters = task.module().get_submodule("characters")
    assert isinstance(characters, nn.Embedding)
    return replace(task, module=lambda: model(characters.num_embeddings))


def _words(directory: Path | None, width: int, batch: int) -> TrainingTask:
    path = directory / "tinyshakespeare" / "input.txt" if directory else None
    text = path.read_text() if path is not None and path.is_file() else own_text()
    words = re.findall(r"\w+|[^\w\s]|\n", text)
    place = {word: index + 1 for index, (word, _) in enumerate(Counter(words).most_common(WORDS - 1))}
    data = torch.tensor([place.get(word, 0) for word in words])

    def windows(starts: Tensor) -> tuple[Tensor, Tensor]:
        rows = data[starts.unsqueeze(1) + torch.arange(CONTEXT + 1)]
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

    def batches(seed: int, rank: int, world_size: int) -> Batches:
        generator = torch.Generator().manual_seed(1000 * seed + rank)
        while True:
            yield windows(torch.randint(len(data) - CONTEXT - 1, (batch,), generator=generator))

    held_out = windows(torch.arange(0, 16 * CONTEXT, CONTEXT))
    return TrainingTask("words", lambda: CharGpt(WORDS, width), batches, held_out, ADAM, compute=0.05)


def _mlp(directory: Path | None, width: int, batch: int) -> TrainingTask:
    task = make_task("mlp", directory, batch)
    pixels = task.held_out[0][0].numel()

    def module() -> nn.Module:
        layers = [nn.Linear(pixels, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)]
        return nn.Sequential(nn.Flatten(), *layers)

    return replace(task, module=module)


def _regression(directory: Path | None, width: int, batch: int) -> TrainingTask:
    generator = torch.Generator().manual_seed(7)
    first = torch.randn(OUTPUTS, width, generator=generator) / OUTPUTS**0.5
    second = torch.randn(width, OUTPUTS, generator=generator) / width**0.5

    def drawn(source: torch.Generator, rows: int) -> tuple[Tensor, Tensor]:
        inputs = torch.randn(rows, OUTPUTS, generator=source)
        return inputs, (inputs @ first).relu() @ second

    def batches(seed: int, rank: int, world_size: int) -> Batches:
        source = torch.Generator().manual_seed(1000 * seed + rank)
        while True:
            yield drawn(source, batch)

    def module() -> nn.Module:
        return nn.Sequential(nn.Linear(OUTPUTS, width), nn.ReLU(), nn.Linear(width, OUTPUTS))

    def loss(model: nn.Module, inputs: Tensor, outputs: Tensor) -> Tensor:
        return F.mse_loss(model(inputs), outputs, reduction="sum") / (10 * len(inputs))

    held_out = drawn(torch.Generator().manual_seed(8), 256)
    return TrainingTask("regression", module, batches, held_out, ADAM, compute=0.05, loss=loss)
