"""Encoding cost: times each level's codec on this host with a million synthetic gradient elements."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from gradwire.compress.base import ChunkSpan
from gradwire.compress.build import build_codec
from gradwire.level import Level

SAMPLE = 1 << 20
ROUNDS = 3


def encoding_costs(levels: Sequence[str]) -> dict[str, float]:
    """Seconds per gradient element and step: encode once, decode the peers' frames, decode the mean."""
    return {text: 0.0 if Level.parse(text).off else _cost(Level.parse(text)) for text in levels}


def _cost(level: Level) -> float:
    """The fastest of a few rounds: slower ones include the work of other processes."""
    generator = torch.Generator().manual_seed(0)
    gradient = torch.randn(SAMPLE, generator=generator) ** 3
    residual, codec = torch.zeros(SAMPLE), build_codec(level)
    frame = torch.empty(codec.size_of(SAMPLE), dtype=torch.uint8)
    span = ChunkSpan(0, 0, 0, SAMPLE)
    out = torch.zeros(SAMPLE)
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        codec.encode(gradient, residual, frame, span, 1)
        codec.decode(frame, out, span, 0.5, add=True)
        codec.decode(frame, out, span)
        best = min(best, time.perf_counter() - start)
    return best / SAMPLE
