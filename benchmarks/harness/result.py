"""Result: block reports -> one row per contestant and network, with medians, spread and ratios; JSON and a table.

Time per step is the mean over ranks of each step, pooled over rounds: median, 10th and 90th percentile. Bytes are
payload that TCP sent once, per rank and step (mean over ranks), and wire bytes as the emulated access links counted
them, headers and retransmissions included. Exposed communication is the median step less that of `no-sync`.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.table import Table

from gradwire.network import Network
from gradwire.types import all_reduce_bytes
from gradwire.units import Bytes, Seconds
from harness.bound import ring_seconds, ring_step, wire_share
from harness.contestants import BOUND_SETTINGS, NO_SYNC, RING, find
from harness.run import BlockReport
from harness.workload import WorkloadSpec


@dataclass(slots=True)
class Row:
    """One contestant on one network; seconds and bytes are per step, bytes per rank too."""

    contestant: str
    network: str
    settings: str
    steps: int = 0
    median: float = 0.0
    p10: float = 0.0
    p90: float = 0.0
    rounds: list[float] = field(default_factory=list)
    payload: float = 0.0
    wire: float = 0.0
    retransmitted: float = 0.0
    predicted: float | None = None
    levels: dict[str, int] = field(default_factory=dict)
    cpu: float | None = None
    exposed: float | None = None
    speedup: float | None = None
    of_bound: float | None = None
    loss: float | None = None
    data: str = ""
    lab: str = ""
    late_share: float = 0.0
    error: str = ""


def rows_of(
    network: Network, workload: WorkloadSpec, names: Sequence[str], reports: Sequence[BlockReport]
) -> list[Row]:
    """Rows in the order of `names`; speedups are against `ddp`, which ran in the same rounds."""
    rows = [_bound(network, workload) if name == RING else _measured(network, name, reports) for name in names]
    by_name = {row.contestant: row for row in rows if not row.error}
    bound = ring_step(network, 4 * workload.numel, workload.seconds)
    for row in by_name.values():
        row.of_bound = bound / row.median
        if "ddp" in by_name:
            row.speedup = by_name["ddp"].median / row.median
        if NO_SYNC in by_name and row.contestant != RING:
            row.exposed = row.median - by_name[NO_SYNC].median
    return rows


def _bound(network: Network, workload: WorkloadSpec) -> Row:
    world, nbytes = len(network.ranks), 4.0 * workload.numel
    seconds = float(ring_step(network, nbytes, workload.seconds))
    sent = float(all_reduce_bytes(round(nbytes), world))
    row = Row(RING, network.name, BOUND_SETTINGS, median=seconds, p10=seconds, p90=seconds, payload=sent)
    row.wire = sent / wire_share(network)
    row.exposed = max(0.0, float(ring_seconds(network, nbytes)) - workload.seconds * 2 / 3)
    return row


def _measured(network: Network, name: str, reports: Sequence[BlockReport]) -> Row:
    row = Row(name, network.name, find(name).settings)
    mine = [report for report in reports if report.block.contestant == name]
    good = [report for report in mine if not report.error]
    row.error = next((report.error for report in mine if report.error), "" if good else "did not run")
    if not good:
        return row
    steps = [step for report in good for step in mean_over_ranks(report)]
    row.steps = len(steps)
    row.median, row.p10, row.p90 = statistics.median(steps), quantile(steps, 0.1), quantile(steps, 0.9)
    row.rounds = [statistics.median(mean_over_ranks(report)) for report in good]
    row.payload = _per_step(good, "sent")
    row.retransmitted = _per_step(good, "retransmitted")
    row.cpu = _per_step(good, "cpu")
    if all(rank_report["predicted"] is not None for report in good for rank_report in report.ranks.values()):
        row.predicted = _per_step(good, "predicted")
    row.levels = dict(sum((Counter(report.ranks[0].get("levels", {})) for report in good), Counter()))
    row.loss, row.data = good[-1].ranks[0]["loss"], good[-1].ranks[0]["data"]
    _add_links(row, network, good)
    return row


def _add_links(row: Row, network: Network, good: Sequence[BlockReport]) -> None:
    """What the hosts' own access links carried, and whether the lab kept up."""
    hosts = {host.name for host in network.ranks}
    first = [index for index, link in enumerate(network.links) if link.source in hosts]
    counted = [report.stats for report in good if report.stats is not None]
    carried = sum(stats.links[index].offered_bytes for stats in counted for index in first)
    row.wire = carried / max(row.steps, 1) / len(hosts)
    bad = [stats.verdict for stats in counted if stats.problems]
    row.lab = bad[0] if bad else "the lab kept up"
    row.late_share = max((stats.late_share for stats in counted), default=0.0)


def mean_over_ranks(report: BlockReport) -> list[float]:
    return [
        statistics.fmean(step)
        for step in zip(*(rank_report["times"] for rank_report in report.ranks.values()), strict=True)
    ]


def _per_step(reports: Sequence[BlockReport], what: str) -> float:
    total = sum(float(rank_report[what]) for report in reports for rank_report in report.ranks.values())
    return total / sum(len(rank_report["times"]) for report in reports for rank_report in report.ranks.values())


def quantile(values: Sequence[float], share: float) -> float:
    """Linear between neighbours; the value itself when there is one."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def as_json(row: Row) -> dict[str, Any]:
    return {key: _short(value) for key, value in asdict(row).items()}


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}")
    return [_short(entry) for entry in value] if isinstance(value, list) else value


def table(title: str, rows: Sequence[Row]) -> Table:
    shown = Table(title=title, title_justify="left")
    for column in (
        "network",
        "contestant",
        "step (p10..p90)",
        "x ddp",
        "of bound",
        "exposed",
        "payload",
        "wire",
        "CPU",
    ):
        shown.add_column(column, justify="left" if column in ("network", "contestant") else "right")
    for row in rows:
        shown.add_row(*cells(row), style="red" if "COULD NOT" in row.lab else None)
    return shown


def cells(row: Row) -> list[str]:
    if row.error and not row.steps:
        return [row.network, row.contestant, f"failed: {row.error[:60]}", "", "", "", "", "", ""]
    spread = "" if row.contestant == RING else f" ({row.p10 * 1e3:.0f}..{row.p90 * 1e3:.0f})"
    return [
        row.network,
        row.contestant,
        f"{row.median * 1e3:.0f} ms{spread}",
        "" if row.speedup is None else f"{row.speedup:.2f}",
        "" if row.of_bound is None else f"{row.of_bound:.2f}",
        "" if row.exposed is None else str(Seconds(round(max(row.exposed, 0.0), 4))),
        # Far less payload than wire: another process, such as a daemon, sends it.
        "?" if row.payload < 0.1 * row.wire and row.wire > 1e5 else str(Bytes(round(row.payload))),
        str(Bytes(round(row.wire))),
        "" if row.cpu is None else str(Seconds(row.cpu)),
    ]
