"""The tables of results in README.md (a few rows) and docs/results/summary.md (all), from docs/results/*.json.

    python benchmarks/readme_table.py            print both
    python benchmarks/readme_table.py --write    put them into their pages

Every figure is computed here from a result file, which a benchmark wrote; a row whose file is missing, or has no result
yet, is left out. The last column is the date of the measurement, the revision, and whether other programs used the
machine, as far as the file has them. `nine` leaves out each planner's first step, which is a warm-up.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
README: Final = ROOT / "README.md"
SUMMARY: Final = ROOT / "docs" / "results" / "summary.md"
BEGIN: Final = "<!-- results: begin (python benchmarks/readme_table.py --write) -->"
END: Final = "<!-- results: end -->"
KEPT_UP: Final = "the lab kept up"
# The share of packets more than 1 ms late above which the lab reports that it did not keep up.
LATE: Final = 0.02


@dataclass(frozen=True, slots=True)
class Row:
    """`tell` makes the sentence from the file's contents; `command` is what measures it."""

    what: str
    file: str
    tell: Callable[[Any], str]
    command: str


def times(value: float) -> str:
    return f"{value:.2g}x" if value < 10 else f"{value:.0f}x"


def listed(parts: Iterable[str]) -> str:
    return ", ".join(parts)


def named(contestant: str) -> str:
    """The name a reader knows: a level without our prefix, the bucket size left out."""
    return contestant.removeprefix("gradwire:").partition("@")[0]


def speedups(found: Any, network: str, *contestants: str) -> str:
    rows = {row["contestant"]: row for row in found["rows"] if row["network"] == network}
    known = [name for name in contestants if name in rows and rows[name]["speedup"]]
    return listed(f"{named(name)} {times(rows[name]['speedup'])}{late(rows['ddp'], rows[name])}" for name in known)


def late(*rows: Any) -> str:
    """A star where the lab did not keep up in one of these blocks."""
    labs = [row.get("lab", "") for row in rows]
    behind = any(lab and lab != KEPT_UP for lab in labs) or any(row.get("late_share", 0) > LATE for row in rows)
    return "\\*" if behind else ""


def networks(found: Any) -> list[str]:
    return list(dict.fromkeys(row["network"] for row in found["rows"]))


def netsense(found: Any) -> str:
    who = ("gradwire:netsense@25", "gradwire:auto@25", "topk-0.1")
    said = []
    for name in networks(found):
        rate, _, model = name.removeprefix("netsense-").partition(", ")
        said.append(
            f"{rate} Mbit/s, {model}: {speedups(found, name, *who)}"
            if model
            else f"{name}: {speedups(found, name, *who)}"
        )
    return "; ".join(said)


def compressors(found: Any) -> str:
    ours = ("gradwire:int8", "gradwire:topk:0.1+int8", "gradwire:lowrank:4", "gradwire:topk:0.01+int8")
    return speedups(found, "lan100", *ours, "powersgd-r4", "fp16-hook")


def peers(found: Any) -> str:
    who = ("gradwire:auto", "powersgd-r1", "powersgd-r4", "topk-0.01", "fp16-hook", "hivemind-fp16")
    return "; ".join(f"{name}: {speedups(found, name, *who)}" for name in networks(found))


def against_peers(found: Any, network: str) -> str:
    return speedups(found, network, "gradwire:auto", "powersgd-r1", "topk-0.01", "fp16-hook", "hivemind-fp16")


def delays(found: Any) -> str:
    fixed = ("gradwire:topk:0.1", "gradwire:topk:0.01", "gradwire:topk:0.001")
    return speedups(found, "wild-delay", "gradwire:dc2", "gradwire:auto", *fixed)


def harmless(found: Any) -> str:
    names = networks(found)
    place = names[0].partition(",")[0]
    each = [f"{name.partition(', ')[2]} {speedups(found, name, 'gradwire:auto@25').split()[-1]}" for name in names]
    return f"{place}: {listed(each)}"


def progress(found: Any) -> str:
    """How often auto is fast enough against fixed levels and its peers, and the mean speed by network."""
    totals = found["totals"]
    if not found["cells"]:
        return ""
    kept, traded, peers = totals["keeping"], totals["trade"], totals["peers"]
    parts = [
        f"at least 0.95x the best fixed level that keeps the accuracy in {kept['reached']} of {kept['of']} (task, "
        f"network, loss); mean speed against it: {listed(mean_speeds(found, 'keeping'))}",
        f"at least as fast as a peer in {peers['reached']} of {peers['of']}",
        f"ruined runs: {listed(f'{name} {count}' for name, count in totals['ruined'].items())}",
    ]
    if traded["of"]:
        reached = f"{traded['reached']} of {traded['of']}"
        parts.insert(
            1,
            f"with a trade allowed, at least 0.95x the best of all in {reached}: {listed(mean_speeds(found, 'trade'))}",
        )
    return "; ".join(parts)


def mean_speeds(found: Any, comparison: str, *tasks: str) -> list[str]:
    """Of auto by network, over tasks and losses; losses that neither reached are left out."""
    speeds: dict[str, list[float]] = {}
    for cell in found["cells"]:
        own = [row[comparison]["speed"] for row in cell["targets"] if comparison in row]
        if not tasks or cell["task"] in tasks:
            speeds.setdefault(cell["network"], []).extend(one for one in own if one is not None)
    return [f"{name} {statistics.fmean(own):.2f}x" for name, own in speeds.items() if own]


def equal_steps(found: Any) -> str:
    """By task: auto's held-out loss and accuracy after as many steps as plain DDP's, where auto compressed."""
    gaps: dict[str, list[tuple[float, float]]] = {}
    for cell in found["cells"]:
        own = cell["controllers"]["auto"]
        ends = [(one["difference"], one["points"]) for one in own["equal_steps"]]
        if any(share.get("off", 0) < 1 for share in own["levels"]):
            nats, points = (statistics.fmean(part) for part in zip(*ends, strict=True))
            gaps.setdefault(cell["task"], []).append((nats, points))
    totals = found["totals"]
    said = [
        f"{task}: {statistics.fmean(nats for nats, _ in own):+.3f} nats (worst network {max(own)[0]:+.3f}), "
        f"{statistics.fmean(points for _, points in own):+.2f} points"
        for task, own in gaps.items()
    ]
    if not said:
        return ""
    kept = f"within 0.02 nats or 0.3 points in {totals['equal_steps']} of {totals['compressing']} (task, network)"
    return "; ".join([*said, kept])


def accuracy(found: Any) -> str:
    """By task: the difference of each level to uncompressed training, in the task's own unit."""
    shown = ("fp16", "int8", "int4", "topk:0.1+int8", "topk:0.01+int8", "lowrank:4", "auto", "randk:0.5+fp16")
    said = []
    for name, task in found.items():
        gaps = {row["level"]: row["gap"] for row in task["rows"]}
        levels = [level for level in shown if level in gaps]
        if levels:
            said.append(f"{name} ({task['unit']}): {listed(f'{level} {gaps[level]:+.2f}' for level in levels)}")
    return "; ".join(said)


def kernels(found: Any) -> str:
    best = max(found["results"], key=lambda row: row["n"])
    floor, ours, torchs = (best["best_ms"][name] for name in ("floor: r += g", "select 1 %", "torch topk feedback 1 %"))
    return (
        f"{floor / ours:.2f} of its speed, {times(torchs / ours)} torch's top-k way ({best['n'] / 1e6:.0f} M elements)"
    )


def hook(found: Any) -> str:
    speed = {name: row["speed"] for name, row in found["results"].items()}
    ours = listed(f"{named(name)} {speed[name]:.2f}x" for name in speed if name.startswith("gradwire:"))
    return f"{ours}; fp16 {speed['gradwire:fp16'] / speed['fp16-hook']:.2f}x of torch's fp16 hook"


def nine(found: Any) -> str:
    median = {
        row["name"]: statistics.median(step["seconds"] for step in row["steps"][1:]) for row in found["nine"]["rows"]
    }
    against = {"star": "a single-server star", "pairwise": "pairwise merge", "fapt": "the published trees"}
    return listed(f"{times(median[name] / median['loadaware'])} {text}" for name, text in against.items())


def aws(found: Any) -> str:
    if "aws" not in found:
        return ""
    rows = {row["name"]: row["steps"][1:] for row in found["aws"]["rows"]}
    median = {name: statistics.median(step["seconds"] for step in steps) for name, steps in rows.items() if steps}
    ours, gloo = median.pop("loadaware"), median.pop("gloo ring (TCP)")
    best = min(median, key=lambda name: median[name])
    return f"{times(gloo / ours)} gloo's ring over TCP, {times(median[best] / ours)} the best other planner ({best})"


def whole(found: Any) -> str:
    """Seconds to the accuracy; for contestants that did not reach it, their last accuracy."""
    said = []
    for name, entry in found.items():
        if entry["reached"]:
            said.append(f"{name} {entry['reached']:.1f} s{late(entry)}")
        elif entry["points"]:
            said.append(f"{name} not in {entry['limit']:g} s ({entry['points'][-1][3]:.2f}){late(entry)}")
    return "; ".join(said)


def ltp(found: Any) -> str:
    """The least and the greatest ratio; with a step that was ended at its limit, the true ratio is higher."""
    cells: dict[tuple[float, float, bool], dict[str, Any]] = {}
    for row in found:
        cells.setdefault((row["rtt"], row["loss"], row["bursty"]), {})[row["system"]] = row
    said = []
    for name, text in (("tcp cubic", "TCP CUBIC"), ("tcp bbr", "TCP BBR")):
        ratios = [
            (row[name]["step_s"] / row["ltp bbr"]["step_s"], cell, row[name]["finished"])
            for cell, row in cells.items()
            if name in row and row.get("ltp bbr", {}).get("finished")
        ]
        said.append(f"{ltp_cell(min(ratios))} to {ltp_cell(max(ratios))} {text}")
    return "; ".join(said)


def ltp_cell(seen: tuple[float, tuple[float, float, bool], bool]) -> str:
    ratio, (rtt, loss, bursty), finished = seen
    how = "in bursts" if bursty else "lost"
    return f"{'' if finished else 'over '}{times(ratio)} ({1e3 * rtt:g} ms, {100 * loss:g} % {how})"


def backend(found: Any) -> str:
    said, loopback = [], [row for row in found["rows"] if row["where"] == "loopback"]
    for ranks in dict.fromkeys(row["ranks"] for row in loopback):
        rows = [row for row in loopback if row["ranks"] == ranks]
        each = (
            f"{row['size']} {times(statistics.median(row['gloo']) / statistics.median(row['gradwire']))}"
            for row in rows
        )
        said.append(f"{ranks} ranks: {listed(each)}")
    return "; ".join(said)


def wire_bytes(found: Any) -> str:
    """Bytes seen on the sockets over bytes predicted, by model."""
    said = []
    for case in found:
        ratios = {row["contestant"]: row["payload"] / row["predicted"] for row in case["rows"] if row["predicted"]}
        most = max(ratios, key=lambda name: ratios[name])
        low = min(ratios.values())
        said.append(f"{case['workload']['model']} {low:.3f} to {ratios[most]:.2f} ({named(most)})")
    return listed(said)


def recording_cost(found: Any) -> str:
    shares = [row["share_of_step"] for row in found["rows"]]
    return f"{100 * min(shares):.2f} to {100 * max(shares):.2f} %"


ROWS: Final = (
    Row("paced gradients, 8 hosts, against plain DDP", "netsense", netsense, "netsense.py"),
    Row("the same while the network changes", "netsense-changing", netsense, "netsense_changing.py"),
    Row("time to three losses in virtual time: `auto` against every fixed level", "progress", progress, "progress.py"),
    Row("`auto` and its peers against plain DDP, paced ResNet-18, 4 hosts, by step time", "peers", peers, "peers.py"),
    Row("fixed levels against plain DDP, 4 hosts at 100 Mbit/s", "compressors", compressors, "compressors.py"),
    Row("`auto` against none at equal steps, in virtual time", "progress", equal_steps, "progress.py"),
    Row("accuracy against none, on loopback", "accuracy", accuracy, "accuracy.py"),
    Row("fused feedback + selection of 1 % against `r += g`", "kernels", kernels, "kernels.py --rounds 7"),
    Row("speed on loopback, where bandwidth is free, against plain DDP", "hook", hook, "hook.py --rounds 10"),
    Row(
        "`auto` where the network is fast, against plain DDP, 2 ranks", "harmless-bare", harmless, "harmless.py --bare"
    ),
    Row("the same, 4 hosts at 10 Gbit/s", "harmless", harmless, "harmless.py"),
    Row("varying delay (25 Mbit/s, jitter 8 ms one way), 4 hosts, against plain DDP", "delays", delays, "delays.py"),
    Row("planned trees by the real executor, NetStorm's 9 sites (scaled)", "plan-lab", nine, "plan_lab.py nine"),
    Row("ten cloud regions (scaled), planned trees over LTP", "plan-lab", aws, "plan_lab.py aws"),
    Row(
        "everything together: nine changing sites, 1 % loss, time to 75 % accuracy",
        "whole",
        whole,
        "whole.py --data DIR",
    ),
    Row("8 workers and a server over LTP, worst and best cell", "ltp-grid", ltp, "ltp_lab.py grid"),
    Row("all_reduce of the backend on loopback against gloo", "backend", backend, "backend.py loopback"),
    Row("bytes on the sockets against what the session predicts", "wire-bytes", wire_bytes, "wire_bytes.py --data DIR"),
    Row("recording events, share of a step", "recording-cost", recording_cost, "recording_cost.py"),
)


# Of the README: what most users would ask, including one case that gradwire loses.
README_ROWS: Final = (
    Row(
        "8 hosts at 200 Mbit/s, ResNet-18's gradients: step time against plain DDP",
        "netsense",
        lambda found: speedups(found, "netsense-200, resnet18", "gradwire:auto@25", "gradwire:netsense@25", "topk-0.1"),
        "netsense.py",
    ),
    Row("4 hosts at 100 Mbit/s, the same", "peers", lambda found: against_peers(found, "lan100"), "peers.py"),
    Row(
        "4 hosts at 1 Gbit/s, the same: **PowerSGD is faster**",
        "peers",
        lambda found: against_peers(found, "lan1g"),
        "peers.py",
    ),
    Row(
        "`auto` on networks where it compresses, against uncompressed training after the same steps (virtual time)",
        "progress",
        equal_steps,
        "progress.py --data-dir DIR",
    ),
    Row("planned trees over nine sites (NetStorm's network, scaled)", "plan-lab", nine, "plan_lab.py nine"),
    Row(
        "8 workers and a server over LTP, worst and best of fifteen cells of random loss",
        "ltp-grid",
        ltp,
        "ltp_lab.py grid",
    ),
)


def measured(found: Any) -> str:
    """Date, revision, and whether the machine was shared; "not noted" if the file does not have them."""
    if isinstance(found, list):
        found = found[0]
    machine = found.get("machine") or found.get("nine", {}).get("machine")
    if not machine:
        return "not noted"
    shared = ", shared machine" if machine.get("shared_machine") else ""
    return f"{machine['time'][:10]}, {machine['revision'][:7]}{shared}"


def command_of(row: Row, found: Any) -> str:
    """The command in the file, else the default one."""
    given = found.get("command") if isinstance(found, dict) else None
    text = given or f"python benchmarks/{row.command}"
    words = text.split()
    for flag in ("--out", "--json"):
        if flag in words:
            place = words.index(flag)
            del words[place : place + 2]
    return " ".join(words)


def table(folder: Path = ROOT / "docs" / "results", rows: Iterable[Row] = ROWS) -> str:
    lines = ["| what | result | command | measured |", "|---|---|---|---|"]
    for row in rows:
        path = folder / f"{row.file}.json"
        if path.exists():
            found = json.loads(path.read_text())
            said = row.tell(found)
            if said:  # the file of a benchmark that has just begun has no result yet
                lines.append(f"| {row.what} | {said} | `{command_of(row, found)}` | {measured(found)} |")
    return "\n".join(lines)


def tables() -> dict[Path, str]:
    """The page of each table, and the table."""
    return {README: table(rows=README_ROWS), SUMMARY: table()}


def inserted(page: str, text: str) -> str:
    """The page with the table between its marks."""
    before, found, rest = page.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise SystemExit(f"the page lacks the marks {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the tables into their pages")
    write = parser.parse_args().write
    for page, text in tables().items():
        if write:
            page.write_text(inserted(page.read_text(), text))
        else:
            print(text)


if __name__ == "__main__":
    main()
