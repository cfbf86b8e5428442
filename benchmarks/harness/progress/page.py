"""Page: a result of the progress benchmark as text, and its curves as plots."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from harness.progress.cells import AUTO, Curve

NOT_FINITE: Final = "not finite"
# Networks in a row of a plot.
COLUMNS: Final = 5


def markdown(result: Mapping[str, Any]) -> str:
    machine, setup, totals = result["machine"], result["setup"], result["totals"]
    lines = [
        "# Progress: loss against seconds and against steps", "", f"    {result['command']}", "",
        f"Virtual time: real gradients and codecs of {setup['hosts']} workers, a simulated network and clock "
        f"(transport {setup['wire']}), {setup['steps']} steps, {len(result['seeds'])} seeds. "
        f"gradwire {machine['revision']}, torch {machine['torch']}, {machine['time'][:10]}."
        + (f" {result['of_other_code']} runs are of earlier code." if result["of_other_code"] else ""),
        "",
        "A fixed level's losses do not depend on the network: each is trained once, and its recorded traffic is timed "
        "on every network. Controllers are trained on each network. A run of a cell ends when a contestant that leads "
        "has taken its steps; the three losses are the lowest that anyone has reached at one third, two thirds and the "
        "end of that time, by the training loss, smoothed over a twentieth of the steps. **Speed** is the other's "
        "seconds to that loss over auto's: above 1, `auto` was there first; `>`: the other did not get there in its "
        "steps, and its whole time is compared; `<`: `auto` did not; `-`: neither did. The best fixed level is chosen "
        "in hindsight, by its mean time over the seeds. Means over seeds, with the least and the greatest.", "",
        "## In short", "", *short(totals), "", "## Time to three losses", "",
        *time_table(result["cells"]), "", "## At equal steps", "",
        f"Loss on data that no worker trains on, after {setup['steps']} steps; differences are to plain DDP (`off`) of "
        "the same seed.", "", *equal_table(result["cells"]), "", "## Fixed levels at equal steps", "",
        *fixed_table(result["fixed"]), "",
    ]  # fmt: skip
    if result["composition"]:
        lines += ["## The composition", "", *composition_table(result["composition"]), ""]
    if result["missing"]:
        lines += [f"Not run: {'; '.join(result['missing'])}.", ""]
    lines += [f"![{name.removesuffix('.png')}]({name})" for name in result["plots"]]
    return "\n".join(lines) + "\n"


def short(totals: Mapping[str, Any]) -> list[str]:
    lines = [
        f"- At least 0.95x the best fixed level: {totals['reached']} of {totals['pairs']} (cell, loss) pairs, "
        f"faster than it on changing networks: {totals['changing_reached']} of {totals['changing']}.",
        f"- At least as fast as each peer (plain DDP, netsense, dc2): {totals['peers_reached']} of {totals['peers']}. "
        f"Undecided, because the other's steps, or both's, ended before: {totals['undecided']}.",
        f"- At equal steps, where `auto` compresses: within 0.02 of plain DDP's loss in {totals['equal_steps']} of "
        f"{totals['compressing']} cells.",
        f"- Ruined runs (the last loss not below 0.9 of the first, or not finite): {_ruined(totals)}.",
    ]
    if totals["most_changes_steady"] is not None:
        lines.append(
            f"- Level changes after step 30 on steady networks: at most {totals['most_changes_steady']} a run."
        )
    lines += [f"- Slower than 0.95 of the best: {'; '.join(totals['below'])}."] if totals["below"] else []
    return lines + ([f"- Slower than a peer: {'; '.join(totals['peers_below'])}."] if totals["peers_below"] else [])


def _ruined(totals: Mapping[str, Any]) -> str:
    parts = [f"{name} {count} of {totals['runs'][name]}" for name, count in totals["ruined"].items()]
    return ", ".join([*parts, f"fixed levels {totals['ruined_fixed']} of {totals['runs_fixed']}"])


def time_table(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    names = [peer["other"] for peer in cells[0]["targets"][0]["peers"]] if cells else []
    head = ["task", "network", "loss", "best fixed", "its seconds", "auto's", "speed", *(f"against {n}" for n in names)]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for cell in cells:
        for row in cell["targets"]:
            best = row["best"]
            values = [
                cell["task"], cell["network"], f"{statistics.fmean(row['loss']):.3f}", f"`{best['other']}`",
                seconds_text(row["seconds"][best["other"]]), seconds_text(row["seconds"][AUTO]),
                speed_text(best), *map(speed_text, row["peers"]),
            ]  # fmt: skip
            lines.append(f"| {' | '.join(values)} |")
    return lines


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
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for cell in cells:
        for name, own in cell["controllers"].items():
            ends = own["equal_steps"]
            points = statistics.fmean(one["points"] for one in ends)
            ruined = f", **{own['ruined']} ruined**" if own["ruined"] else ""
            values = [
                cell["task"], cell["network"], name + ruined, mean_text([one["held_out"] for one in ends]),
                mean_text([one["difference"] for one in ends], "+.3f"), f"{points:+.2f}",
                ", ".join(map(str, own["changes"])), ", ".join(map(str, own["guarded"])), levels_text(own["levels"]),
            ]  # fmt: skip
            lines.append(f"| {' | '.join(values)} |")
    return lines


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
    lines = ["| task | level | training loss | held out | accuracy | ruined |", "|---|---|---|---|---|---|"]
    for row in rows:
        lines.append(
            f"| {row['task']} | `{row['level']}` | {mean_text(row['loss'])} | {mean_text(row['held_out'])} "
            f"| {100 * statistics.fmean(row['accuracy']):.2f} % | {row['ruined']} of {row['seeds']} |"
        )
    return lines


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
            axis.plot(own[name].seconds, own[name].losses, label=name, linewidth=2.5 if name == AUTO else 1.2)
        axis.set_xscale("log")
        axis.set_title(network, fontsize=10)
        axis.legend(fontsize=7)
    figure.supxlabel("seconds of virtual time")
    figure.supylabel("training loss, smoothed")
    figure.suptitle(task)
    figure.savefig(path, dpi=90)
    pyplot.close(figure)
