"""Plot: a bar a contestant for each network, time per step on a logarithmic axis, with the spread and the bound."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

from harness.contestants import RING
from harness.result import Row


def save(path: Path, title: str, rows: Sequence[Row]) -> None:
    """Rows that failed are left out; the bound is a dashed line."""
    networks = list(dict.fromkeys(row.network for row in rows))
    figure, axes = pyplot.subplots(1, len(networks), figsize=(1.5 + 3.6 * len(networks), 4.2), squeeze=False)
    for axis, network in zip(axes[0], networks, strict=True):
        mine = [row for row in rows if row.network == network and row.median > 0]
        bars = [row for row in mine if row.contestant != RING]
        colors = ["tab:orange" if row.contestant.startswith("gradwire") else "tab:blue" for row in bars]
        heights = [row.median * 1e3 for row in bars]
        low = [(row.median - row.p10) * 1e3 for row in bars]
        high = [(row.p90 - row.median) * 1e3 for row in bars]
        axis.bar([row.contestant for row in bars], heights, color=colors, yerr=[low, high], capsize=3)
        for row in mine:
            if row.contestant == RING:
                axis.axhline(row.median * 1e3, color="black", linestyle="--", linewidth=1, label="fp32 ring bound")
                axis.legend(fontsize=8)
        axis.set_yscale("log")
        axis.set_title(network, fontsize=10)
        axis.set_ylabel("ms per step")
        axis.tick_params(axis="x", rotation=60, labelsize=8)
    figure.suptitle(title, fontsize=11)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
