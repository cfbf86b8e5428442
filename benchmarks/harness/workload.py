"""Workload: what a rank trains. `paced:MODEL` imitates a GPU, `real:MODEL` computes on this machine.

A workload makes a fresh module for each block of steps and runs one step of it; contestants see only the DDP model.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from harness.data import batches
from harness.models import MODELS
from harness.paced import COMPUTE_MS, Paced, Source
from harness.recorded import load


@dataclass(frozen=True, slots=True)
class WorkloadSpec:
    """As a case names it; `compute_ms` None takes the stated time of the model's GPU (paced only)."""

    kind: str
    model: str
    compute_ms: float | None = None
    batch: int = 16
    data: str | None = None

    @classmethod
    def parse(
        cls, text: str, compute_ms: float | None = None, data: str | None = None, batch: int = 16
    ) -> WorkloadSpec:
        kind, _, model = text.partition(":")
        known = COMPUTE_MS if kind == "paced" else MODELS
        if kind not in ("paced", "real") or model not in known:
            raise SystemExit(
                f"workload: {text!r} is not paced:MODEL ({', '.join(COMPUTE_MS)}) or real:MODEL ({', '.join(MODELS)})"
            )
        return cls(kind, model, compute_ms, batch, data)

    @property
    def seconds(self) -> float:
        """Stated compute time of a step; 0 where the machine itself computes."""
        if self.kind == "real":
            return 0.0
        return (COMPUTE_MS[self.model][0] if self.compute_ms is None else self.compute_ms) / 1e3

    @property
    def about(self) -> str:
        if self.kind == "real":
            return f"{self.model}, computed on this machine, batch {self.batch}"
        why = COMPUTE_MS[self.model][1] if self.compute_ms is None else "set for this run"
        return f"{self.model}, paced: {self.seconds * 1e3:g} ms of compute a step ({why}), synthetic gradients"

    @property
    def numel(self) -> int:
        if self.kind == "paced":
            return sum(row.numel for row in load(self.model))
        return sum(parameter.numel() for parameter in MODELS[self.model]().parameters())


class Workload(Protocol):
    """One rank's side of a workload."""

    @property
    def data(self) -> str: ...

    def module(self) -> nn.Module:
        """A fresh module, equal on all ranks."""
        ...

    def step(self, model: nn.Module) -> float:
        """Forward, backward and, where weights matter, the update. Returns the loss."""
        ...


class PacedWorkload:
    """No optimizer runs: weights do not change, and only compute and the synchronisation of gradients are timed."""

    data = "synthetic gradients"

    def __init__(self, spec: WorkloadSpec, rank: int) -> None:
        self._spec = spec
        self._source = Source(load(spec.model), rank)

    def module(self) -> nn.Module:
        return Paced(self._spec.model, self._source, self._spec.seconds)

    def step(self, model: nn.Module) -> float:
        model(torch.zeros(1)).sum().backward()
        self._source.step += 1
        return 0.0


class RealWorkload:
    """SGD with momentum on real data, or on random data if there is none."""

    def __init__(self, spec: WorkloadSpec, rank: int) -> None:
        self._spec = spec
        self.data, self._batches = batches(spec.model, Path(spec.data) if spec.data else None, spec.batch, rank)
        self._optimizers: dict[int, torch.optim.Optimizer] = {}

    def module(self) -> nn.Module:
        torch.manual_seed(0)
        self._optimizers.clear()
        return MODELS[self._spec.model]()

    def step(self, model: nn.Module) -> float:
        if id(model) not in self._optimizers:
            self._optimizers[id(model)] = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
        inputs, labels = next(self._batches)
        self._optimizers[id(model)].zero_grad(set_to_none=True)
        loss: Tensor = F.cross_entropy(model(inputs), labels)
        loss.backward()
        self._optimizers[id(model)].step()
        return float(loss.detach())


def make(spec: WorkloadSpec, rank: int) -> Workload:
    return PacedWorkload(spec, rank) if spec.kind == "paced" else RealWorkload(spec, rank)
