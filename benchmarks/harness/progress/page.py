"""Page: a result of the progress benchmark as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from harness.progress.runs import EVALUATIONS
from harness.progress.summary import NATS, POINTS
from harness.progress.tables import (
    composition_table,
    equal_table,
    fixed_table,
    lab_table,
    local_table,
    other_code_table,
    peer_table,
    time_table,
)
from harness.progress.torch_hooks import POWERSGD_START, TORCH_HOOKS, work_of

LOCAL_STEPS: Final = (
    "`local:H`: workers train alone for H steps, then weights are synchronised at int8. `auto-local`: `auto` with "
    "`sync_every` left to it. The loss of a local step is that of the workers' own weights. The best synchronous level "
    "is the best of all fixed ones, chosen in hindsight."
)

OTHER_CODE: Final = (
    "The code that these results depend on has changed since they were made, and they were not made again "
    "(`--any-code`)."
)


def markdown(result: Mapping[str, Any]) -> str:
    machine, setup, totals = result["machine"], result["setup"], result["totals"]
    lines = [
        "# Progress: loss against seconds and against steps", "", f"    {result['command']}", "",
        f"Virtual time: real gradients and codecs of {setup['hosts']} workers, a simulated network and clock "
        f"(transport {setup['wire']}), {setup['steps']} steps, {len(result['seeds'])} seeds. "
        f"gradwire {machine['revision']}, torch {machine['torch']}, {machine['time'][:10]}."
        + (f" {_counted(_others(result), 'run')} of other code: see the end." if result["of_other_code"] else ""),
        "",
        "A fixed level's losses do not depend on the network: each is trained once, and its recorded traffic is timed "
        "on every network. Controllers are trained on each network. The three losses are what "
        "plain DDP has reached after a quarter, a half and nine tenths of its steps, by the trend of the training "
        "loss. Every contestant of a seed has the same batches: the noise that they add to plain DDP's loss is "
        "subtracted from the others' before their trend is taken (two runs that differ by rounding then differ by "
        "2 % in their steps to a loss, without it by up to 40 %). **Speed** is the other's "
        "seconds to that loss over auto's: above 1, `auto` was there first; `>`: the other did not get there in its "
        "steps, and its whole time is compared; `<`: `auto` did not; `-`: neither did. The best fixed level is chosen "
        "in hindsight, by its mean time over the seeds. Means over seeds, with the least and the greatest.", "",
        "By default `auto` uses only levels that cost at most 5 % more steps, so it is compared with the best fixed "
        f"level that keeps the accuracy (at equal steps within {NATS:g} nats, or {POINTS:g} points of accuracy, of "
        "plain DDP: the table of fixed levels says which), and with the best of all. `auto, trade allowed` has "
        "`extra_steps = 1.0` and is compared with the best of all.", "",
        f"Peers are plain DDP, torch's fp16 hook, torch's PowerSGD hook (rank 1 and 4, started after {POWERSGD_START} "
        "steps instead of torch's 1,000, in one bucket, as gloo needs it) and gradwire's `netsense` and `dc2`. What "
        f"torch's hooks compute is charged to them as that of gradwire's levels is: {_hook_work()} ns per element.", "",
        f"What was run: {what_was_run(result)}.", "",
        "## In short", "", *short(totals), "", "## Time to three losses", "",
        *time_table(result["cells"]), "", "## Against peers", "",
        "Speed of `auto`, and after the slash of `auto, trade allowed`.", "", *peer_table(result["cells"]), "",
        "## At equal steps", "",
        f"Loss on data that no worker trains on, a mean over {EVALUATIONS} evaluations in the last tenth of "
        f"{setup['steps']} steps; differences are to plain DDP (`off`) of the same seed.", "",
        *equal_table(result["cells"]), "", "## Fixed levels and torch's hooks at equal steps", "",
        *fixed_table(result["fixed"]), "",
    ]  # fmt: skip
    if any("local" in row for cell in result["cells"] for row in cell["targets"]):
        lines += ["## Local steps", "", LOCAL_STEPS, "", *local_table(result["cells"]), ""]
    if result["composition"]:
        lines += ["## The composition", "", *composition_table(result["composition"]), ""]
    if result["lab"]:
        lines += [
            "## Whole runs in the lab", "",
            "Real ranks with DDP over gloo on the emulated network, in dilated time, with the same data: mean seconds "
            f"of a step over {result['lab'][0]['steps']} steps without the first five, against the same run in virtual "
            "time and against the composition; and the greatest distance of the two losses, smoothed over ten steps.",
            "",
            *lab_table(result["lab"]), "",
        ]  # fmt: skip
    if result["of_other_code"]:
        lines += ["## Runs of other code", "", OTHER_CODE, "", *other_code_table(result["of_other_code"]), ""]
    if result["missing"]:
        lines += [f"Not run: {'; '.join(result['missing'])}.", ""]
    lines += [f"![{name.removesuffix('.png')}]({name})" for name in result["plots"]]
    return "\n".join(lines) + "\n"


def _hook_work() -> str:
    works = [(work_of(name)[0], name.removeprefix("torch-")) for name in TORCH_HOOKS]
    return ", ".join(f"{name} {work:.1f}" for work, name in works)


def _others(result: Mapping[str, Any]) -> int:
    return sum(one["runs"] for one in result["of_other_code"])


def what_was_run(result: Mapping[str, Any]) -> str:
    """Tasks with their networks and number of seeds."""
    cells: dict[tuple[str, int], list[str]] = {}
    for cell in result["cells"]:
        cells.setdefault((cell["task"], len(cell["seeds"])), []).append(cell["network"])
    parts = [f"{task} on {', '.join(nets)} ({_counted(seeds, 'seed')})" for (task, seeds), nets in cells.items()]
    return "; ".join(parts) or "nothing yet"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def short(totals: Mapping[str, Any]) -> list[str]:
    lines = [
        _compared("`auto` against the best fixed level that keeps the accuracy", totals["keeping"]),
        _compared("`auto` against the best of all fixed levels", totals["best"]),
    ]
    if totals["trade"]["of"]:
        lines.append(_compared("`auto, trade allowed` against the best of all", totals["trade"]))
    lines.append(_peers("`auto`", totals["peers"]))
    if totals["trade_peers"]["of"]:
        lines.append(_peers("`auto, trade allowed`", totals["trade_peers"]))
    lines += [
        f"- At equal steps, where `auto` compresses: within {NATS:g} nats or {POINTS:g} points of plain DDP in "
        f"{totals['equal_steps']} of {totals['compressing']} cells.",
        f"- Ruined runs (the last loss not below 0.9 of the first, or not finite): {_ruined(totals)}.",
    ]
    if totals["most_changes_steady"] is not None:
        lines.append(
            f"- Level changes after step 30 on steady networks: at most {totals['most_changes_steady']} a run."
        )
    return lines


def _compared(what: str, counts: Mapping[str, Any]) -> str:
    text = (
        f"- {what}: at least 0.95x in {counts['reached']} of {counts['of']} (cell, loss) pairs{_open(counts)}; "
        f"faster on changing networks in {counts['changing_reached']} of {counts['changing']}."
    )
    return text + (f" Slower: {'; '.join(counts['below'])}." if counts["below"] else "")


def _peers(who: str, counts: Mapping[str, Any]) -> str:
    text = f"- {who} at least as fast as a peer: {counts['reached']} of {counts['of']} comparisons{_open(counts)}."
    return text + (f" Slower: {'; '.join(counts['below'])}." if counts["below"] else "")


def _open(counts: Mapping[str, Any]) -> str:
    """Comparisons that say nothing, because the other's steps, or both's, ended before."""
    return f" ({counts['undecided']} undecided: the steps ended before)" if counts["undecided"] else ""


def _ruined(totals: Mapping[str, Any]) -> str:
    parts = [f"{name} {count} of {totals['runs'][name]}" for name, count in totals["ruined"].items()]
    return ", ".join([*parts, f"fixed levels {totals['ruined_fixed']} of {totals['runs_fixed']}"])
