"""Plot: loss against seconds of one task, a panel for each network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from harness.progress.cells import AUTO
from harness.progress.curves import Curve
from harness.progress.tables import SHOWN

# Networks in a row.
COLUMNS: Final = 3


def plot(path: Path, task: str, curves: Mapping[str, Mapping[str, Curve]], shown: Mapping[str, Sequence[str]]) -> None:
    """One task: a panel for each network, loss against seconds of one seed, the contestants that are `shown` there."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    columns = min(COLUMNS, len(curves))
    rows = -(-len(curves) // columns)
    figure, axes = pyplot.subplots(
        rows, columns, figsize=(4 * columns, 3.2 * rows), squeeze=False, sharey=True, constrained_layout=True
    )
    for axis in axes.flat[len(curves) :]:
        axis.axis("off")
    for axis, (network, own) in zip(axes.flat, curves.items(), strict=False):
        for name in shown[network]:
            label, width = SHOWN.get(name, name), 2.5 if name == AUTO else 1.2
            axis.plot(own[name].seconds, own[name].losses, label=label, linewidth=width)
        axis.set_xscale("log")
        axis.set_title(network, fontsize=10)
        axis.legend(fontsize=7)
    figure.supxlabel("seconds of virtual time")
    figure.supylabel("training loss, trend")
    figure.suptitle(task)
    figure.savefig(path, dpi=90)
    pyplot.close(figure)
