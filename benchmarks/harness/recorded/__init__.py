"""Recorded models (see record_gradients.py): read from the JSON files beside this one."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Recorded:
    """One parameter: its gradient's root mean square, the spread of ln |g|, and its layer's multiplications."""

    name: str
    shape: tuple[int, ...]
    scale: float
    tail: float
    flops: float

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


def load(model: str) -> tuple[Recorded, ...]:
    path = FOLDER / f"{model}.json"
    if not path.is_file():
        known = ", ".join(sorted(entry.stem for entry in FOLDER.glob("*.json")))
        raise SystemExit(
            f"paced workload: no recording of {model!r}; choose one of {known}, or run benchmarks/record_gradients.py"
        )
    rows = json.loads(path.read_text())["parameters"]
    return tuple(Recorded(r["name"], tuple(r["shape"]), r["scale"], r["tail"], r["flops"]) for r in rows)
