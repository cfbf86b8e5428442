"""Format: numbers and strings of a run as readable text; `clean` makes untrusted strings from files safe."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Final

from gradwire.units import Rate, Seconds

_BLOCKS: Final = "▁▂▃▄▅▆▇█"
# Eight times the difference of two such numbers is still finite.
_MOST: Final = 1e307


def clean(text: str, most: int = 500) -> str:
    """Printable text on one line, at most `most` characters: no escape sequences, no direction marks."""
    kept = "".join(" " if c in "\n\t\r" else c for c in text[: 2 * most] if c in "\n\t\r" or _printable(c))
    return kept if len(kept) <= most else kept[: most - 1] + "…"


def _printable(character: str) -> bool:
    return unicodedata.category(character)[0] != "C"


def spark(values: Sequence[float], width: int = 16) -> str:
    """The last `width` values as one line of blocks, scaled from their minimum to their maximum."""
    shown = [max(-_MOST, min(_MOST, value)) for value in list(values)[-width:]]
    if not shown:
        return ""
    low, high = min(shown), max(shown)
    if high - low <= 0.02 * abs(high):  # draw a flat line instead of magnified noise
        return _BLOCKS[3] * len(shown)
    return "".join(_BLOCKS[min(7, int(8 * (value - low) / (high - low)))] for value in shown)


def rate(value: float | None) -> str:
    return "-" if value is None else str(Rate(value))


def seconds(value: float | None) -> str:
    return "-" if value is None else str(Seconds(value))


def span(value: float | None) -> str:
    """A duration: 2.4 s, 40 s, 12 min, 3 h 05 min."""
    if value is None:
        return "-"
    if 0 < value < 10:
        return f"{value:.2g} s"
    if value < 120:
        return f"{value:.0f} s"
    minutes = round(value / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"


def count(value: int) -> str:
    """A count: 53 k, 11.2 M."""
    for size, unit in ((10**9, " G"), (10**6, " M"), (10**3, " k")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return str(value)


def percent(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{100 * value:.2g} %" if value < 0.1 else f"{100 * value:.0f} %"
