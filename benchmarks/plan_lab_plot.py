"""Plots docs/results/plan-lab.png from plan-lab.json: step time by planner, and step times when a link slows down."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

RESULTS = Path(__file__).parents[1] / "docs" / "results"


def main() -> None:
    found = json.loads((RESULTS / "plan-lab.json").read_text())
    cases = [name for name in ("nine", "aws", "redrawn", "drop") if name in found]
    figure, axes = plt.subplots(1, len(cases), figsize=(5.5 * len(cases), 3.6), squeeze=False)
    for axis, name in zip(axes[0], cases, strict=True):
        rows = found[name]["rows"]
        if name == "drop":
            for row in rows:
                axis.plot([s["at"] for s in row["steps"]], [s["seconds"] for s in row["steps"]], label=row["name"])
            axis.axvline(found[name]["at"], color="gray", linestyle=":")
            axis.set_xlabel("s since the start; dotted: the link falls to a tenth")
            axis.set_ylabel("s a step")
            axis.legend()
        else:
            times = {row["name"]: statistics.median(s["seconds"] for s in row["steps"][1:]) for row in rows}
            order = sorted(times, key=lambda one: -times[one])
            bars = axis.barh(order, [times[one] for one in order], color="#4477aa")
            axis.bar_label(bars, fmt="%.2f", padding=3)
            axis.set_xlabel("s a step")
        axis.set_title({"nine": "nine sites", "aws": "ten regions", "redrawn": "redrawn", "drop": "a link falls"}[name])
    figure.tight_layout()
    figure.savefig(RESULTS / "plan-lab.png", dpi=110)


if __name__ == "__main__":
    main()
