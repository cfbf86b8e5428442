"""Units: Bytes, Seconds and Rate as number types.

Rate x Seconds is Bytes, Bytes / Rate is Seconds, Bytes / Seconds is Rate. Any other arithmetic gives plain numbers.
`parse_*` read text such as "200mbit", "20ms", "64KiB", "1%" and raise ConfigError.
"""

from __future__ import annotations

import math
import re
from typing import overload

from gradwire.errors import ConfigError

_NUMBER = re.compile(r"^\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*([a-zA-Z%/]*)\s*$", re.IGNORECASE)
_TIME = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "min": 60.0}
_SIZE = {
    "": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9,
    "kib": 2**10, "mib": 2**20, "gib": 2**30,
}  # fmt: skip
_BITS = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "kbps": 1e3, "mbps": 1e6, "gbps": 1e9}


class Seconds(float):
    """A duration."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Seconds({float(self)!r})"

    def __str__(self) -> str:
        size = abs(self)
        if size >= 1 or size == 0:
            return f"{float(self):.3g} s"
        return f"{self * 1e3:.3g} ms" if size >= 1e-3 else f"{self * 1e6:.3g} us"


class Bytes(int):
    """An amount of data."""

    __slots__ = ()

    @overload  # type: ignore[override]
    def __truediv__(self, other: Rate) -> Seconds: ...
    @overload
    def __truediv__(self, other: Seconds) -> Rate: ...
    @overload
    def __truediv__(self, other: float) -> float: ...
    def __truediv__(self, other: float) -> float:
        if isinstance(other, Rate):
            return Seconds(int(self) / float(other)) if other > 0 else Seconds(math.inf)
        if isinstance(other, Seconds):
            return Rate(int(self) / float(other)) if other > 0 else Rate(math.inf)
        return int(self) / other

    def __repr__(self) -> str:
        return f"Bytes({int(self)})"

    def __str__(self) -> str:
        value = float(self)
        for unit in ("B", "kB", "MB", "GB"):
            if abs(value) < 1000:
                return f"{value:.3g} {unit}"
            value /= 1000
        return f"{value:.3g} TB"


class Rate(float):
    """Data per time, stored in bytes per second; parsed and printed in bits per second."""

    __slots__ = ()

    @classmethod
    def from_mbit(cls, mbit: float) -> Rate:
        return cls(mbit * 1e6 / 8)

    @property
    def mbit(self) -> float:
        return float(self) * 8 / 1e6

    @overload
    def __mul__(self, other: Seconds) -> Bytes: ...  # type: ignore[overload-overlap]
    @overload
    def __mul__(self, other: float) -> float: ...
    def __mul__(self, other: float) -> float:
        if isinstance(other, Seconds):
            return Bytes(round(float(self) * float(other)))
        return float(self) * other

    def __repr__(self) -> str:
        return f"Rate({float(self)!r})"

    def __str__(self) -> str:
        if math.isinf(self):
            return "unlimited"
        mbit = self.mbit
        return f"{mbit / 1000:.3g} Gbit/s" if mbit >= 1000 else f"{mbit:.3g} Mbit/s"


def _split(text: str | float, setting: str, example: str) -> tuple[float, str]:
    match = _NUMBER.match(str(text))
    if match is None:
        raise ConfigError(f"{setting}: {text!r} is not a number with a unit; write for example {example}")
    return float(match[1]), match[2].lower()


def parse_seconds(text: str | float, setting: str = "time") -> Seconds:
    """Read "20ms", "1.5s"; a bare number is seconds."""
    value, unit = _split(text, setting, '"20ms"')
    if unit not in _TIME and unit != "":
        raise ConfigError(f"{setting}: unit {unit!r} of {text!r} is not one of {', '.join(_TIME)}")
    return Seconds(value * _TIME.get(unit, 1.0))


def parse_bytes(text: str | float, setting: str = "size") -> Bytes:
    """Read "64KiB", "4MB"; a bare number is bytes."""
    value, unit = _split(text, setting, '"64KiB"')
    if unit not in _SIZE:
        units = ", ".join(unit for unit in _SIZE if unit)
        raise ConfigError(f"{setting}: unit {unit!r} of {text!r} is not one of {units}")
    return Bytes(round(value * _SIZE[unit]))


def parse_rate(text: str | float, setting: str = "rate") -> Rate:
    """Read "200mbit", "1gbit/s", "unlimited"; a bare number is Mbit/s."""
    if str(text).strip().lower() in ("unlimited", "inf"):
        return Rate(math.inf)
    value, unit = _split(text, setting, '"200mbit"')
    unit = unit.removesuffix("/s") or "mbit"
    if unit not in _BITS:
        raise ConfigError(f"{setting}: unit {unit!r} of {text!r} is not one of {', '.join(_BITS)}")
    return Rate(value * _BITS[unit] / 8)


def parse_fraction(text: str | float, setting: str = "fraction") -> float:
    """Read "1%" or 0.01; the result lies in 0..1."""
    value, unit = _split(text, setting, '"1%" or 0.01')
    if unit not in ("", "%"):
        raise ConfigError(f"{setting}: {text!r} is neither a percentage nor a plain number")
    value = value / 100 if unit == "%" else value
    if not 0 <= value <= 1:
        raise ConfigError(f"{setting}: {text!r} lies outside 0..1 (0 % to 100 %)")
    return value
