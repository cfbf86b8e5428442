"""What a transfer that is closed early has lost: sent by importance, and in permuted order.

    python benchmarks/ltp_importance.py [--json FILE] [--steps 5] [--model resnet18]

benchmarks/ltp_page.py makes the table from the file.

One rank sends the int8 frame of a gradient to its owner over 100 Mbit/s and 20 ms, packet by packet in virtual time:
exact, and the same on every machine. Gradients have the recorded scales and tails of a model's parameters; an eighth of
each is sent, as in an exchange of eight ranks. Figures are means over the steps after the first, which finds the rate.
The deadline that cuts is at 80 % of the time that all bytes take. Lost energy is what a step did not deliver, as a
share of what it sent. Left out is the norm of everything that was not applied after the last step, as a share of that
of the sum of all gradients, with residuals and without.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor

from gradwire._native import PacketLink, PacketWorld
from gradwire.compress.base import ChunkSpan
from gradwire.compress.build import build_codec
from gradwire.level import Level
from harness.recorded import load

RATE: Final = 12.5e6
TOLERANCE: Final = 0.98
CUT_TOLERANCE: Final = 0.9
SHARE: Final = 8
# A gradient is a steady part and noise: their ratio in norm. Without a steady part, what is left out is only noise.
STEADY: Final = 0.3
HEADERS: Final = 1.05  # of packets, on the wire
SEED: Final = 7


@dataclass(frozen=True, slots=True)
class Row:
    loss: float
    cut: bool
    order: str
    seconds: float
    lost_bytes: float
    lost_energy: float
    left_out_with_residuals: float
    left_out_without: float


def gradients(model: str, seed: int) -> Iterator[Tensor]:
    """An eighth of every step's gradient: of each parameter an eighth, in a row."""
    generator = torch.Generator().manual_seed(seed)
    parameters = [(one, -(-one.numel // SHARE)) for one in load(model)]

    def draw() -> Tensor:
        parts = []
        for one, count in parameters:
            # The spread of ln |g| of a normal value is 1.11; a larger one is that of a lognormal factor.
            spread = max(0.0, one.tail**2 - 1.11**2) ** 0.5
            values = torch.randn(count, generator=generator)
            values *= torch.exp(spread * torch.randn(count, generator=generator))
            parts.append(values * (one.scale / values.square().mean().sqrt().clamp_min(1e-12)))
        return torch.cat(parts)

    steady = draw()
    while True:
        yield STEADY * steady + draw()


class Link:
    """Two LTP endpoints; one transfer at a time."""

    def __init__(self, loss: float, seed: int) -> None:
        self.world = PacketWorld(2, seed)
        for direction in (0, 1):
            link = PacketLink()
            link.rate, link.delay, link.queue, link.loss = RATE, 0.01, 500_000, loss
            self.world.add_link(link, seed + direction, 18)
        self.world.set_path(0, 1, [0])
        self.world.set_path(1, 0, [1])
        self.world.connect(0, 1)
        self.world.run(1.0)
        self._token = 0

    def transfer(
        self, size: int, tolerance: float, span: int, energies: list[float], deadline: float
    ) -> tuple[float, list[tuple[int, int]]]:
        """Seconds until the receiver has it, and the byte ranges that are missing."""
        self._token += 1
        self.world.expect(1, 0, self._token, size, deadline)
        self.world.send_tolerant(0, 1, self._token, size, tolerance, span, energies)
        began, ended = self.world.now, None
        while ended is None:
            rows = self.world.run(60.0)
            assert rows, "the transfer does not end"
            ended = next((at for at, host, token, sent in rows if (host, token, sent) == (1, self._token, False)), None)
        self.world.run(0.3)
        return ended - began, self.world.take_missing(1, self._token)


class Applied:
    """What a receiver has summed up; the sender returns what did not arrive to its residual, or drops it."""

    def __init__(self, returns: bool, numel: int) -> None:
        self._returns = returns
        self._residual = torch.zeros(numel)
        self.total = torch.zeros(numel)

    def step(self, link: Link, gradient: Tensor, cut: bool, order: str) -> tuple[float, float, float]:
        """Seconds, lost share of the bytes and of the energy."""
        values = gradient + self._residual
        delivered, seconds, lost = send(link, values, cut, order)
        if self._returns:
            self._residual = values - delivered
        self.total += delivered
        return seconds, lost, float((values - delivered).square().sum() / values.square().sum())


def measure(model: str, loss: float, cut: bool, order: str, steps: int) -> Row:
    link, source = Link(loss, SEED), gradients(model, SEED)
    gradient = next(source)
    kept, dropped = (Applied(returns, gradient.numel()) for returns in (True, False))
    total = torch.zeros_like(gradient)
    figures = []
    for _ in range(steps + 1):
        figures.append(kept.step(link, gradient, cut, order))
        dropped.step(link, gradient, cut, order)
        total += gradient
        gradient = next(source)
    seconds, lost, energy = (float(value) for value in np.mean(figures[1:], axis=0))
    left_out = [float((total - one.total).norm() / total.norm()) for one in (kept, dropped)]
    return Row(loss, cut, order, seconds, lost, energy, *left_out)


def send(link: Link, values: Tensor, cut: bool, order: str) -> tuple[Tensor, float, float]:
    """Encode, transfer what is behind the scales, decode what arrived: values, seconds, lost share of the bytes."""
    codec, span = build_codec(Level.parse("int8")), ChunkSpan(0, 0, 0, values.numel())
    frame = torch.zeros(codec.size_of(values.numel()), dtype=torch.uint8)
    codec.encode(values.clone(), None, frame, span, None)
    energies = codec.energies(frame)
    assert energies is not None
    size = frame.numel() - energies.offset
    deadline = 0.8 * size * HEADERS / RATE if cut else 0.0
    named = energies.values.tolist() if order == "importance" else []
    seconds, missing = link.transfer(size, CUT_TOLERANCE if cut else TOLERANCE, energies.span, named, deadline)
    for offset, length in missing:
        frame[energies.offset + offset : energies.offset + offset + length] = 0
    out = torch.empty_like(values)
    codec.decode(frame, out, span, whole=not missing)
    return out, seconds, sum(length for _, length in missing) / size


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--json", type=Path)
    options.add_argument("--steps", type=int, default=5)
    options.add_argument("--model", default="resnet18")
    chosen = options.parse_args()
    rows = []
    for loss, cut in [(0.01, False), (0.05, False), (0.1, False), (0.2, False), (0.0, True), (0.05, True)]:
        for order in ("permuted", "importance"):
            rows.append(measure(chosen.model, loss, cut, order, chosen.steps))
            print(rows[-1], flush=True)
    if chosen.json:
        chosen.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
