"""Plot: one bar per contestant and network: time per step with its spread, and the bound as a dashed line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

from harness.contestants import RING
from harness.result import Row

# Where the slowest takes this many times the fastest, a linear axis shows only the slowest.
LOGARITHMIC = 15.0


def save(path: Path, title: str, rows: Sequence[Row]) -> None:
    """Rows that failed are left out."""
    networks = list(dict.fromkeys(row.network for row in rows))
    most = max(len([row for row in rows if row.network == network]) for network in networks)
    width = max(3.2, 0.55 * most + 1)
    figure, axes = pyplot.subplots(1, len(networks), figsize=(width * len(networks), 4.6), squeeze=False)
    for axis, network in zip(axes[0], networks, strict=True):
        _bars(axis, [row for row in rows if row.network == network and row.median > 0])
        axis.set_title(network, fontsize=10)
    figure.suptitle(title, fontsize=11)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _bars(axis: Any, rows: Sequence[Row]) -> None:
    bars = [row for row in rows if row.contestant != RING]
    colors = ["tab:orange" if row.contestant.startswith("gradwire") else "tab:blue" for row in bars]
    heights = [row.median * 1e3 for row in bars]
    low = [(row.median - row.p10) * 1e3 for row in bars]
    high = [(row.p90 - row.median) * 1e3 for row in bars]
    places = range(len(bars))
    drawn = axis.bar(places, heights, color=colors, yerr=[low, high], capsize=3)
    axis.bar_label(drawn, [f"{height:.0f}" for height in heights], fontsize=7, padding=1)
    axis.set_xticks(list(places), [row.contestant for row in bars], rotation=60, ha="right", fontsize=8)
    for row in rows:
        if row.contestant == RING:
            axis.axhline(row.median * 1e3, color="black", linestyle="--", linewidth=1, label="fp32 ring bound")
            axis.legend(fontsize=8, loc="upper right")
    if max(heights) > LOGARITHMIC * min(heights):
        axis.set_yscale("log")
        axis.set_ylim(bottom=min(heights) / 2)
    axis.set_ylabel("ms per step")
    axis.margins(y=0.12)
