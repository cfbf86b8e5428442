"""Draws a plan as SVG: members on a circle, each tree in its colour, lines as wide as the load of their link.

The drawing follows the reader's light or dark theme.

In: Matrix, Plan, names. Out: SVG text: a panel with the load of all links, then one per tree, largest shares first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise

from gradwire.plan.matrix import Matrix
from gradwire.plan.trees import sources_of
from gradwire.types import Plan, Tree

PANEL, MARGIN, MOST = 260, 46, 8
# Colours that colour-blind people can distinguish (Okabe and Ito), and that are visible on white and on black.
COLOURS = ("#2f8ac6", "#d55e00", "#009e73", "#cc79a7", "#d39200", "#56b4e9", "#9467bd", "#8a93a3")
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#1c2330}.page{fill:#fff}.member{fill:#333}"
    "@media(prefers-color-scheme:dark){text{fill:#e6e9ef}.page{fill:#12161d}.member{fill:#c4ccd8}}"
)
Point = tuple[float, float]


def draw(matrix: Matrix, plan: Plan, names: Sequence[str] = ()) -> str:
    """The SVG document."""
    labels = dict(zip(matrix.members, names or [str(member) for member in matrix.members], strict=True))
    trees = sorted(plan.trees, key=lambda tree: -tree.share)[:MOST]
    columns = min(3, len(trees) + 1)
    rows = math.ceil((len(trees) + 1) / columns)
    parts = [_panel(0, 0, "all trees together", _load(matrix, plan), labels, None)]
    for place, tree in enumerate(trees, start=1):
        colour = COLOURS[(place - 1) % len(COLOURS)]
        edges = {(child, parent): (1.6, colour) for child, parent in tree.parents.items() if child != parent}
        edges |= _down(tree, colour)
        title = f"{tree.share:.0%} of the gradient, root {labels[tree.root]}"
        parts.append(_panel(place % columns, place // columns, title, edges, labels, tree.root))
    width, height = columns * PANEL, rows * PANEL + 54
    shown = f"the {MOST} largest of {len(plan.trees)} trees" if len(plan.trees) > MOST else "all trees"
    captions = (f"{plan.planner}: {plan.reason}", f"{shown}; thin lines: where results take another way down")
    below = "".join(
        f'<text x="10" y="{height - 30 + 18 * line}">{escape(text)}</text>' for line, text in enumerate(captions)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"><style>{STYLE}</style>'
        f'<rect class="page" width="100%" height="100%"/>{"".join(parts)}{below}</svg>\n'
    )


def _down(tree: Tree, colour: str) -> dict[tuple[int, int], tuple[float, str]]:
    """Edges by which results are sent down, where they differ from the edges of the sums."""
    if not tree.sources:
        return {}
    edges = {(source, child) for child, source in sources_of(tree).items() if source != child}
    return {edge: (1.0, f"{colour}88") for edge in edges if (edge[1], edge[0]) not in tree.parents.items()}


def _load(matrix: Matrix, plan: Plan) -> dict[tuple[int, int], tuple[float, str]]:
    """Every link in use; its width is its busy time relative to the busiest link."""
    row = {member: index for index, member in enumerate(matrix.members)}
    busy: dict[tuple[int, int], float] = {}
    for tree in plan.trees:
        edges = [*tree.parents.items(), *((source, child) for child, source in sources_of(tree).items())]
        for edge in edges:
            for a, b in pairwise(plan.routes.get(edge, edge)):
                if a != b:
                    busy[a, b] = busy.get((a, b), 0.0) + tree.share / float(matrix.rate[row[a], row[b]])
    most = max(busy.values(), default=1.0)
    return {
        link: (0.4 + 4 * time / most, COLOURS[0] if time < 0.9 * most else COLOURS[1]) for link, time in busy.items()
    }


def _panel(
    column: int, row: int, title: str, edges: Mapping[tuple[int, int], tuple[float, str]],
    labels: Mapping[int, str], root: int | None,
) -> str:  # fmt: skip
    points = _circle(list(labels), column * PANEL, row * PANEL)
    lines = [_arrow(points[a], points[b], width, colour) for (a, b), (width, colour) in edges.items()]
    dots = []
    for member, (x, y) in points.items():
        shape = f'r="6" fill="{COLOURS[1]}"' if member == root else 'r="4" class="member"'
        dots.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" {shape}/>')
        dots.append(_label(x, y, column * PANEL + PANEL / 2, row * PANEL + PANEL / 2 + 8, labels[member]))
    head = f'<text x="{column * PANEL + 10}" y="{row * PANEL + 16}">{escape(title)}</text>'
    return head + "".join(lines) + "".join(dots)


def _label(x: float, y: float, middle_x: float, middle_y: float, text: str) -> str:
    """A member's name outside the circle, where no line is."""
    length = math.hypot(x - middle_x, y - middle_y) or 1.0
    out_x, out_y = (x - middle_x) / length, (y - middle_y) / length
    anchor = "start" if out_x > 0.3 else "end" if out_x < -0.3 else "middle"
    place = f'x="{x + 10 * out_x:.1f}" y="{y + 13 * out_y + 4:.1f}"'
    return f'<text {place} text-anchor="{anchor}">{escape(text)}</text>'


def _circle(members: Sequence[int], left: float, top: float) -> dict[int, Point]:
    middle, radius = PANEL / 2, PANEL / 2 - MARGIN
    turn = 2 * math.pi / max(1, len(members))
    return {
        member: (left + middle + radius * math.sin(turn * place), top + middle + 8 - radius * math.cos(turn * place))
        for place, member in enumerate(members)
    }


def _arrow(start: Point, end: Point, width: float, colour: str) -> str:
    """An arrow that bends to its right, so that both directions of a link can be distinguished."""
    (x1, y1), (x2, y2) = start, end
    bend_x, bend_y = (x1 + x2) / 2 - (y2 - y1) * 0.08, (y1 + y2) / 2 + (x2 - x1) * 0.08
    length = math.hypot(x2 - bend_x, y2 - bend_y) or 1.0
    ux, uy = (x2 - bend_x) / length, (y2 - bend_y) / length
    tip, size = (x2 - 6 * ux, y2 - 6 * uy), 3 + width
    wings = (
        f"{tip[0] - size * ux + size * 0.5 * uy:.1f},{tip[1] - size * uy - size * 0.5 * ux:.1f} "
        f"{tip[0] - size * ux - size * 0.5 * uy:.1f},{tip[1] - size * uy + size * 0.5 * ux:.1f}"
    )
    return (
        f'<path d="M{x1:.1f},{y1:.1f} Q{bend_x:.1f},{bend_y:.1f} {tip[0]:.1f},{tip[1]:.1f}" fill="none" '
        f'stroke="{colour}" stroke-width="{width:.2f}"/>'
        f'<polygon points="{tip[0]:.1f},{tip[1]:.1f} {wings}" fill="{colour}"/>'
    )
