"""Tables of the progress benchmark's page: cells, fixed levels and the composition as lines of Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final

from harness.progress.cells import AUTO, TRADE

NOT_FINITE: Final = "not finite"
# How contestants are called on the page.
SHOWN: Final = {TRADE: "auto, trade allowed", "off": "off (plain DDP)"}


def time_table(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    head = [
        "task", "network", "loss", "best that keeps accuracy", "its seconds", "best of all", "its seconds",
        "auto", "against keeping", "against all", "trade allowed", "against all",
    ]  # fmt: skip
    rows = []
    for cell, row in _targets(cells):
        keeping, best = row["keeping"], row["best"]
        rows.append([
            cell["task"], cell["network"], f"{statistics.fmean(row['loss']):.3f}",
            f"`{keeping['other']}`", seconds_text(row["seconds"][keeping["other"]]),
            f"`{best['other']}`", seconds_text(row["seconds"][best["other"]]),
            seconds_text(row["seconds"][AUTO]), speed_text(keeping), speed_text(best),
            seconds_text(row["seconds"].get(TRADE, [])), speed_text(row["trade"]) if "trade" in row else "-",
        ])  # fmt: skip
    return table(head, rows)


def peer_table(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    names = list(dict.fromkeys(peer["other"] for _, row in _targets(cells) for peer in row["peers"]))
    rows = []
    for cell, row in _targets(cells):
        speeds = {peer["other"]: speed_text(peer) for peer in row["peers"]}
        for peer in row.get("trade_peers", []):
            speeds[peer["other"]] += f" / {speed_text(peer)}"
        loss = f"{statistics.fmean(row['loss']):.3f}"
        rows.append([cell["task"], cell["network"], loss, *(speeds.get(name, "not run") for name in names)])
    return table(["task", "network", "loss", *(SHOWN.get(name, name) for name in names)], rows)


def _targets(cells: Sequence[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    return [(cell, row) for cell in cells for row in cell["targets"]]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(one)} |" for one in (head, ["---"] * len(head), *rows)]


def seconds_text(times: Sequence[float | None]) -> str:
    """The mean of the seeds that got there, and how many did where not all."""
    reached = [one for one in times if one is not None]
    if not reached:
        return "-"
    mean = f"{statistics.fmean(reached):.1f}"
    return mean if len(reached) == len(times) else f"{mean} ({len(reached)} of {len(times)})"


def speed_text(speed: Mapping[str, Any]) -> str:
    seeds = speed["seeds"]
    if not seeds:
        return "-"
    spread = f" ({min(seeds):.2f}..{max(seeds):.2f})" if len(seeds) > 1 else ""
    sign = "< " if speed["failed"] else "> " if speed["behind"] else ""
    return f"{sign}{speed['speed']:.2f}{spread}"


def equal_table(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    head = ("task", "network", "controller", "loss", "difference", "points", "changes after 30", "guarded", "levels")
    rows = []
    for cell in cells:
        for name, own in cell["controllers"].items():
            ends = own["equal_steps"]
            points = statistics.fmean(one["points"] for one in ends)
            ruined = f", **{own['ruined']} ruined**" if own["ruined"] else ""
            rows.append([
                cell["task"], cell["network"], SHOWN.get(name, name) + ruined,
                mean_text([one["held_out"] for one in ends]), mean_text([one["difference"] for one in ends], "+.3f"),
                f"{points:+.2f}", ", ".join(map(str, own["changes"])), ", ".join(map(str, own["guarded"])),
                levels_text(own["levels"]),
            ])  # fmt: skip
    return table(head, rows)


def levels_text(seeds: Sequence[Mapping[str, float]]) -> str:
    """The three most frequent levels, by their mean share of steps."""
    names = dict.fromkeys(name for seed in seeds for name in seed)
    shares = {name: statistics.fmean(seed.get(name, 0.0) for seed in seeds) for name in names}
    most = sorted(shares, key=lambda name: -shares[name])[:3]
    return ", ".join(f"`{name}` {100 * shares[name]:.0f} %" for name in most)


def mean_text(values: Sequence[float | None], how: str = ".3f") -> str:
    known = [one for one in values if one is not None]
    return f"{statistics.fmean(known):{how}}" if len(known) == len(values) else NOT_FINITE


def fixed_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    head = ("task", "level", "training loss", "held out", "accuracy", "keeps accuracy", "ruined")
    return table(head, [
        [
            row["task"], f"`{row['level']}`", mean_text(row["loss"]), mean_text(row["held_out"]),
            f"{100 * statistics.fmean(row['accuracy']):.2f} %", "yes" if row["keeps"] else "no",
            f"{row['ruined']} of {row['seeds']}",
        ]
        for row in rows
    ])  # fmt: skip


def composition_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [
        "Whole runs of fixed levels against their composition:", "",
        "| task | network | level | seconds, whole | composed | deviation | last loss, whole | composed |",
        "|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for row in rows:
        ran, composed = row["seconds"]
        lines.append(
            f"| {row['task']} | {row['network']} | `{row['level']}` | {ran:.2f} | {composed:.2f} "
            f"| {100 * row['deviation']:+.2f} % | {mean_text(row['losses'][:1])} | {mean_text(row['losses'][1:])} |"
        )
    return lines


def lab_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    head = (
        "task", "network", "level", "seconds a step: lab", "virtual time", "composed", "losses apart", "dilation",
        "kept up",
    )  # fmt: skip
    lines = []
    for row in rows:
        real, *models = row["seconds_per_step"]
        told = [
            f"{model:.3f} ({100 * deviation:+.1f} %)" for model, deviation in zip(models, row["deviation"], strict=True)
        ]
        lines.append([
            row["task"], row["network"], f"`{row['level']}`", f"{real:.3f}", told[0], told[1] if told[1:] else "-",
            f"{row['loss_distance']:.3f}", f"{row['dilate']:g}", kept_up_text(row),
        ])  # fmt: skip
    return table(head, lines)


def kept_up_text(row: Mapping[str, Any]) -> str:
    """Whether the lab and the ranks' processors did; else which did not."""
    if row["kept_up"]:
        return "yes"
    late = f"compute late in {100 * row['late_compute']:.0f} % of steps" if row["late_compute"] else ""
    emulator = "" if row["verdict"] == "the lab kept up" else "packets late"
    return f"no: {', '.join(filter(None, (emulator, late)))}"


def other_code_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Which runs other code made; a timing belongs to several levels and has no task."""
    return table(["run", "contestant", "task", "networks", "runs", "made by"], [
        [
            row["kind"], f"`{row['level']}`" if row["level"] else "-", row["task"] or "-",
            ", ".join(row["networks"]) or "-", str(row["runs"]), "; ".join(row["made"]),
        ]
        for row in rows
    ])  # fmt: skip


def local_table(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """Contestants with local steps against the best fixed level."""
    rows = []
    for cell, row in _targets(cells):
        loss = f"{statistics.fmean(row['loss']):.3f}"
        for one in row.get("local", ()):
            theirs, ours = (seconds_text(row["seconds"][name]) for name in (one["other"], one["name"]))
            names = f"`{one['other']}`", theirs, f"`{one['name']}`", ours
            rows.append([cell["task"], cell["network"], loss, *names, speed_text(one)])
    return table(["task", "network", "loss", "best synchronous", "its seconds", "local", "its seconds", "speed"], rows)
