"""Packing: a series of numbers as a short text for a line of JSON. Exact to the decimals of the series.

    1. round to whole units of the last decimal: of losses 0.00001, of seconds 0.0001
    2. differences to the number before
    3. the lowest bytes of all, then the next ones, and so on: the upper ones are mostly equal
    4. zlib, and base 85, whose characters JSON does not escape

What is left of a loss is the noise of its batches, and of seconds the jitter: 1,000 losses take 2 to 3 kB.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

# Decimals of the series that records have. A step takes tens of milliseconds, and losses are compared to 0.01.
DECIMALS: Final = {"losses": 5, "seconds": 4}
LARGEST: Final = 2**31


def packed(result: Mapping[str, Any]) -> dict[str, Any]:
    """A record whose series are texts; one that is short or has a number that is not finite stays as it is."""
    return {name: _packed(value, DECIMALS[name]) if name in DECIMALS else value for name, value in result.items()}


def unpacked(record: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _numbers(value, DECIMALS[name]) if name in DECIMALS and isinstance(value, str) else value
        for name, value in record.items()
    }


def rounded(name: str, values: Sequence[float]) -> list[float]:
    """As the series will be when it is read again."""
    return [round(float(one), DECIMALS[name]) for one in values]


def _packed(values: Sequence[float], decimals: int) -> str | list[float]:
    series = np.asarray(values, np.float64)
    scale = 10**decimals
    if len(series) < 2 or not np.isfinite(series).all() or np.abs(series).max() * scale >= LARGEST:
        return [round(float(one), decimals) for one in values]
    units = np.rint(series * scale).astype(np.int64)  # 1
    steps = np.diff(units, prepend=0)  # 2
    folded = np.where(steps < 0, -2 * steps - 1, 2 * steps).astype("<u8")
    planes = folded.view(np.uint8).reshape(-1, 8).T  # 3
    return base64.b85encode(zlib.compress(planes.tobytes(), 9)).decode()  # 4


def _numbers(text: str, decimals: int) -> list[float]:
    planes = np.frombuffer(zlib.decompress(base64.b85decode(text)), np.uint8)
    folded = np.ascontiguousarray(planes.reshape(8, -1).T).view("<u8").reshape(-1)
    steps = np.where(folded & 1, -((folded + 1) >> 1).astype(np.int64), (folded >> 1).astype(np.int64))
    return [round(float(one) / 10**decimals, decimals) for one in np.cumsum(steps)]
