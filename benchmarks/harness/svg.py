"""Figures as SVG that follow the reader's light or dark theme: bars on a logarithmic scale, and a timeline.

800 units wide, so that labels of 13 units are readable where a page shows them at 800 pixels. Colours are those of
Okabe and Ito, told apart with every kind of colour vision; in a dark theme they are lighter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

WIDTH: Final = 800
LIGHT: Final = ("#8a93a3", "#d55e00", "#0072b2", "#009e73", "#cc79a7", "#8a7a10")
DARK: Final = ("#9aa5b5", "#ff9a5c", "#56b4e9", "#4cd3a5", "#e7a3c8", "#e8c25a")


@dataclass(frozen=True, slots=True)
class Bars:
    """One group of bars; None is a bar that cannot be drawn."""

    name: str
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Trace:
    """A curve over time; `faint` for what is in the background."""

    name: str
    points: Sequence[tuple[float, float]]
    faint: bool = False


@dataclass(frozen=True, slots=True)
class Band:
    """A level, from one time to another."""

    name: str
    begin: float
    end: float


def _page(height: int, body: Sequence[str]) -> str:
    light = "".join(f".c{i}{{fill:{color}}}.s{i}{{stroke:{color}}}" for i, color in enumerate(LIGHT))
    dark = "".join(f".c{i}{{fill:{color}}}.s{i}{{stroke:{color}}}" for i, color in enumerate(DARK))
    style = (
        "text{font:13px system-ui,sans-serif;fill:#3b4554}.t{font-size:17px;font-weight:600;fill:#1c2330}"
        ".n{font-size:12px;fill:#657085}.g{stroke:#dde1e8}.b{fill:#fff}.l{fill:none;stroke-width:2}.f{stroke-width:1}"
        ".w{fill:#fff;font-size:12px}"
        + light
        + "@media(prefers-color-scheme:dark){text{fill:#c4ccd8}.t{fill:#e6e9ef}.n{fill:#98a2b3}.g{stroke:#2c3542}"
        ".b{fill:#12161d}.w{fill:#12161d}" + dark + "}"
    )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">'
    return f'{head}<style>{style}</style><rect class="b" width="100%" height="100%"/>{"".join(body)}</svg>\n'


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>'


def _legend(y: float, names: Sequence[str]) -> list[str]:
    parts, x = [], 16.0
    for index, name in enumerate(names):
        parts += [f'<rect x="{x:.1f}" y="{y - 10:.1f}" width="12" height="12" rx="2" class="c{index}"/>']
        parts += [_text(x + 18, y, name)]
        x += 42 + 7.2 * len(name)
    return parts


def bar_figure(title: str, note: str, names: Sequence[str], rows: Sequence[Bars]) -> str:
    """Groups of horizontal bars that start at 1x, on one logarithmic scale."""
    left, right, top, bar = 226.0, 70.0, 84.0, 16.0
    group = bar * len(names) + 16
    values = [value for row in rows for value in row.values if value is not None]
    low, high = min(0.5, *values), max(2.0, *values)
    scale = (WIDTH - left - right) / (math.log(high) - math.log(low))
    bottom = top + group * len(rows)

    def place(value: float) -> float:
        return left + (math.log(value) - math.log(low)) * scale

    body = [_text(16, 28, title, "t"), *_legend(56, names)]
    for mark in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100):
        if low <= mark <= high:
            x = place(mark)
            width = 2 if mark == 1 else 1
            body.append(f'<path d="M{x:.1f} {top}V{bottom:.1f}" class="g" stroke-width="{width}"/>')
            body.append(_text(x, bottom + 18, f"{mark:g}x" if mark != 1 else "plain DDP", "n", "middle"))
    for index, row in enumerate(rows):
        y = top + group * index + 8
        body.append(_text(left - 12, y + group / 2 - 3, row.name, "", "end"))
        for number, value in enumerate(row.values):
            middle = y + bar * number
            if value is None:
                body.append(_text(place(1) + 6, middle + 12, "did not reach it", "n"))
                continue
            begin, end = sorted((place(1), place(value)))
            shape = f'x="{begin:.1f}" y="{middle:.1f}" width="{max(1.0, end - begin):.1f}" height="{bar - 3:.0f}"'
            body.append(f'<rect {shape} rx="2" class="c{number}"/>')
            body.append(_text(end + 6, middle + 11, f"{value:.2g}x" if value < 10 else f"{value:.0f}x", "n"))
    body.append(_text(16, bottom + 42, note, "n"))
    return _page(round(bottom + 56), body)


def timeline_figure(title: str, note: str, traces: Sequence[Trace], bands: Sequence[Band]) -> str:
    """Curves in Mbit/s above, levels as bands below, on one scale of time."""
    left, right, top, plot, band = 62.0, 20.0, 94.0, 210.0, 30.0
    end = max(at for trace in traces for at, _ in trace.points)
    most = max(value for trace in traces for _, value in trace.points) * 1.05
    step = 10 ** math.floor(math.log10(most / 3))
    step = next(step * factor for factor in (1, 2, 5, 10) if most / (step * factor) <= 5)

    def x(at: float) -> float:
        return left + at / end * (WIDTH - left - right)

    def y(value: float) -> float:
        return top + plot * (1 - value / most)

    body = [_text(16, 28, title, "t"), *_legend(56, [trace.name for trace in traces])]
    mark = 0.0
    while mark <= most:
        body.append(f'<path d="M{left} {y(mark):.1f}H{WIDTH - right}" class="g"/>')
        body.append(_text(left - 8, y(mark) + 4, f"{mark:g}", "n", "end"))
        mark += step
    body.append(_text(left - 8, top - 8, "Mbit/s", "n", "end"))
    for index, trace in enumerate(traces):
        points = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in trace.points)
        kind = "l f" if trace.faint else "l"
        body.append(f'<polyline points="{points}" class="{kind} s{0 if trace.faint else index}"/>')
    base = top + plot + 22
    colors = {name: 1 + number % 5 for number, name in enumerate(dict.fromkeys(one.name for one in bands))}
    for one in bands:
        width = x(one.end) - x(one.begin)
        body.append(
            f'<rect x="{x(one.begin):.1f}" y="{base:.1f}" width="{max(0.8, width - 1):.1f}" height="{band}" '
            f'class="c{colors[one.name]}"><title>{escape(one.name)}</title></rect>'
        )
        if width > 7.2 * len(one.name):
            body.append(_text(x(one.begin) + width / 2, base + 19, one.name, "w", "middle"))
    body.append(_text(left - 8, base + 19, "level", "n", "end"))
    below = base + band + 18
    every = next(s for s in (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600) if end / s <= 10 or s == 3600)
    body += [_text(x(every * i), below, f"{every * i} s", "n", "middle") for i in range(int(end / every) + 1)]
    keys = " · ".join(colors)
    body += [_text(16, below + 22, f"levels in the order of their first use: {keys}", "n")]
    body += [_text(16, below + 40, note, "n")]
    return _page(round(below + 54), body)
