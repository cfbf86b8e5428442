"""Recordings that tests share: generated from a seed in virtual time."""

from __future__ import annotations

from pathlib import Path

from gradwire.observe.reader import Record, read
from gradwire.observe.sample import SampleShape, write
from gradwire.observe.state import RunState

SMALL = SampleShape(ranks=4, seconds=120.0, seed=3)
HOUR = SampleShape(ranks=16, seconds=3600.0, seed=1)


def small(folder: Path, *, packed: bool = False, shape: SampleShape = SMALL) -> Path:
    """Two minutes of four ranks."""
    return write(folder / "small", shape, packed=packed)


def hour(folder: Path) -> Path:
    """An hour of sixteen ranks, compressed."""
    return write(folder / "hour", HOUR)


def fold(run: Path) -> tuple[RunState, list[Record]]:
    records = list(read(run))
    state = RunState()
    for record in records:
        state.take(record)
    return state, records
