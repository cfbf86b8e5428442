"""Plot: lines and bars as SVG text. Colours are CSS variables of the page, --s0 to --s7; text is escaped."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

WIDTH: Final = 640
HEIGHT: Final = 240
LEFT, RIGHT, TOP, BOTTOM = 64, 26, 10, 34
COLORS: Final = 8
# More points than this cannot be distinguished in 640 pixels.
MOST_POINTS: Final = 600
# Seconds between two marks on a time axis.
CLOCK: Final = (
    1.0,
    2.0,
    5.0,
    10.0,
    15.0,
    30.0,
    60.0,
    120.0,
    300.0,
    600.0,
    900.0,
    1800.0,
    3600.0,
    7200.0,
    21600.0,
    86400.0,
)

Format = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Line:
    """One run's curve; `dashed` for predicted values."""

    name: str
    points: Sequence[tuple[float, float]]
    color: int = 0
    dashed: bool = False


def line_plot(lines: Sequence[Line], x: Format, y: Format, label: str, *, clock: bool = True) -> str:
    """An SVG of the curves with axes, `clock` if x is time; a sentence if there is nothing to draw."""
    lines = [line for line in lines if line.points]
    if not lines:
        return '<p class="none">nothing was recorded for this plot</p>'
    every = [point for line in lines for point in line.points]
    low_x, high_x = _range([point[0] for point in every])
    low_y, high_y = _range([point[1] for point in every])
    frame = _Frame(low_x, high_x, min(0.0, low_y), high_y, CLOCK if clock else ())
    body = [frame.axes(x, y)]
    body += [frame.curve(line) for line in lines]
    return _svg("".join(body), label)


def split_bars(rows: Sequence[tuple[str, Sequence[tuple[str, float]]]], fmt: Format, label: str) -> str:
    """One stacked bar per row, all on one scale; each part's name and value are shown on hover."""
    rows = [row for row in rows if sum(value for _, value in row[1]) > 0]
    longest = max((sum(value for _, value in parts) for _, parts in rows), default=0.0)
    if longest <= 0:
        return '<p class="none">nothing was recorded for this plot</p>'
    available, body = WIDTH - 150 - RIGHT - 70, []
    for number, (name, parts) in enumerate(rows):
        top, left = 8 + 34 * number, 150.0
        body.append(f'<text x="142" y="{top + 16}" text-anchor="end">{escape(name[:22])}</text>')
        for index, (part, value) in enumerate(parts):
            width = max(0.0, value) / longest * available
            title = f"<title>{escape(part)} {escape(fmt(value))}</title>"
            shape = f'<rect class="p{index}" x="{left:.1f}" y="{top}" width="{width:.1f}" height="22">{title}</rect>'
            body.append(shape)
            left += width
        whole = fmt(sum(value for _, value in parts))
        body.append(f'<text x="{left + 6:.1f}" y="{top + 16}">{escape(whole)}</text>')
    return _svg("".join(body), label, 12 + 34 * len(rows))


@dataclass(frozen=True, slots=True)
class _Frame:
    low_x: float
    high_x: float
    low_y: float
    high_y: float
    steps_x: tuple[float, ...] = ()

    def place(self, x: float, y: float) -> str:
        across = LEFT + (x - self.low_x) / (self.high_x - self.low_x) * (WIDTH - LEFT - RIGHT)
        down = HEIGHT - BOTTOM - (y - self.low_y) / (self.high_y - self.low_y) * (HEIGHT - TOP - BOTTOM)
        return f"{across:.1f},{down:.1f}"

    def curve(self, line: Line) -> str:
        points = thinned(line.points)
        path = " ".join(self.place(*point) for point in points)
        dashes = ' stroke-dasharray="5 4"' if line.dashed else ""
        title = f"<title>{escape(line.name)}</title>"
        color = f"var(--s{line.color % COLORS})"
        if len(points) == 1:
            x, y = self.place(*points[0]).split(",")
            return f'<circle cx="{x}" cy="{y}" r="3" fill="{color}">{title}</circle>'
        return f'<polyline class="line" stroke="{color}"{dashes} points="{path}">{title}</polyline>'

    def axes(self, x: Format, y: Format) -> str:
        marks = []
        for value in ticks(self.low_y, self.high_y, 4):
            _, down = self.place(self.low_x, value).split(",")
            marks.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{down}" y2="{down}"/>')
            marks.append(f'<text x="{LEFT - 6}" y="{float(down) + 4:.1f}" text-anchor="end">{escape(y(value))}</text>')
        for value in ticks(self.low_x, self.high_x, 6, self.steps_x):
            across, _ = self.place(value, self.low_y).split(",")
            marks.append(
                f'<text x="{across}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{escape(x(value))}</text>'
            )
        return "".join(marks)


def ticks(low: float, high: float, count: int, steps: Sequence[float] = ()) -> list[float]:
    """About `count` round numbers in the range; multiples of one of `steps` if one of them is large enough."""
    rough = (high - low) / max(1, count)
    power = 10.0 ** math.floor(math.log10(rough))
    usual = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    step = next((step for step in steps if step >= rough), usual)
    first = math.ceil(low / step)
    return [index * step for index in range(first, math.floor(high / step) + 1)]


def thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The first, lowest and highest point of every interval, so that spikes stay visible."""
    if len(points) <= MOST_POINTS:
        return list(points)
    size = math.ceil(3 * len(points) / MOST_POINTS)
    kept: list[tuple[float, float]] = []
    for start in range(0, len(points), size):
        interval = points[start : start + size]
        chosen = {0, *(f(range(len(interval)), key=lambda i, s=interval: s[i][1]) for f in (min, max))}  # type: ignore[misc]
        kept += [interval[index] for index in sorted(chosen)]
    return kept


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low else (low, low + (abs(low) or 1.0) * 0.1)


def _svg(body: str, label: str, height: int = HEIGHT) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(label)}">{body}</svg>'
