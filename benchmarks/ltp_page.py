"""Tables of docs/results/ltp.md from the JSON files beside it: python benchmarks/ltp_page.py > tables.md

Reads the files of benchmarks/ltp_lab.py, ltp_importance.py and ltp_accuracy.py; missing files are left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent.parent / "docs" / "results"
Rows = list[dict[str, Any]]


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def clean(rows: Rows) -> str:
    def cells(row: dict[str, Any]) -> list[str]:
        cpu = f"{row['cpu_s_per_gb_sender']:.2f} + {row['cpu_s_per_gb_receiver']:.2f}"
        shares = [f"{row['goodput_mbit']:.1f}", f"{row['of_link_after_headers']:.3f}", cpu]
        return [f"{row['link_mbit']:.0f} Mbit/s", row["system"], *shares]

    head = ["link", "system", "goodput, Mbit/s", "of the link after headers", "CPU s/GB, sender + receiver"]
    return table(head, [cells(row) for row in rows])


def grid(rows: Rows) -> str:
    keys = sorted(dict.fromkeys((row["rtt"], row["loss"], row["bursty"]) for row in rows))
    systems = ["ltp bbr", *sorted({row["system"] for row in rows} - {"ltp bbr"}, reverse=True)]
    lines = []
    for rtt, loss, bursty in keys:
        here = {row["system"]: row for row in rows if (row["rtt"], row["loss"], row["bursty"]) == (rtt, loss, bursty)}
        own = here["ltp bbr"]
        texts = [step(here[name]) if name in here else "" for name in systems]
        ratios = [ratio(here[name], own) if name in here else "" for name in systems[1:]]
        lost = f"{own['missing']:.2%}"
        lines.append([f"{1000 * rtt:g} ms", f"{loss:.1%}{' bursty' if bursty else ''}", *texts, *ratios, lost])
    heads = [f"{name}, s" for name in systems] + [f"{name} / LTP" for name in systems[1:]]
    return table(["RTT", "loss", *heads, "not delivered up"], lines)


def step(row: dict[str, Any]) -> str:
    return f"{row['step_s']:.3f}" if row["finished"] else f"> {row['step_s']:.1f}"


def ratio(row: dict[str, Any], own: dict[str, Any]) -> str:
    return f"{'' if row['finished'] else '> '}{row['step_s'] / own['step_s']:.1f}x"


def incast(rows: Rows) -> str:
    def cells(r: dict[str, Any]) -> list[str]:
        times = [f"{1e3 * r['p50_s']:.1f}", f"{1e3 * r['p99_s']:.1f}", f"{r['ratio']:.2f}"]
        return [r["system"], f"{r['transfers']} of {r.get('asked', '?')}", *times]

    return table(["system", "transfers", "p50, ms", "p99, ms", "p99 / p50"], [cells(row) for row in rows])


def fair(rows: Rows) -> str:
    cells = [
        [f"{r['queue_bdp']} BDP", f"{r['first']} and {r['second']}", " / ".join(f"{m:.1f}" for m in r["mbit"]),
         f"{r['share_of_first']:.2f}"]
        for r in rows
    ]  # fmt: skip
    return table(["queue", "flows", "Mbit/s", "share of the first"], cells)


def ablation(rows: Rows) -> str:
    """Tolerance 1 is Early Close off."""
    lines = []
    for rtt, loss in dict.fromkeys((row["rtt"], row["loss"]) for row in rows):
        here = {row["tolerance"]: row for row in rows if (row["rtt"], row["loss"]) == (rtt, loss)}
        on, off = here[0.98], here[1.0]
        gain = f"{off['step_s'] / on['step_s']:.2f}x"
        lines.append([f"{1000 * rtt:g} ms", f"{loss:.1%}", step(on), step(off), gain, f"{on['missing']:.2%}"])
    return table(["RTT", "loss", "Early Close, s", "every byte waited for, s", "gain", "not delivered up"], lines)


def accuracy(rows: Rows) -> str:
    cells = [
        [r["case"], f"{r['accuracy']:.2f}", f"{r['points']:+.2f}", f"{r['range'][0]:+.2f} .. {r['range'][1]:+.2f}"]
        for r in rows
    ]
    return table(["packets lost for good", "accuracy, %", "points against lossless", "range over seeds"], cells)


def soak(rows: Rows) -> str:
    def cells(r: dict[str, Any]) -> list[str]:
        counts = [str(r["leg"]), str(r["rank"]), f"{r['minutes']:g}", str(r["changes"]), str(r["transfers"])]
        sizes = [f"{r['bytes'] / 1e6:.0f}", f"{r['missing'] / r['bytes']:.2%}", str(r["wrong"])]
        return [*counts, *sizes, f"{r['rss_second_quarter_mb']:.1f} -> {r['rss_last_quarter_mb']:.1f}"]

    head = ["leg", "rank", "minutes", "link changes", "transfers", "MB", "not delivered", "bytes wrong", "RSS, MB"]
    return table(head, [cells(row) for row in rows])


def importance(rows: Rows) -> str:
    def cells(r: dict[str, Any]) -> list[str]:
        case = [f"{r['loss']:.0%}", "cuts 20 %" if r["cut"] else "learned", r["order"], f"{r['seconds'] * 1e3:.0f}"]
        left_out = [f"{r[f'left_out_{kind}']:.2%}" for kind in ("with_residuals", "without")]
        return [*case, f"{r['lost_bytes']:.2%}", f"{r['lost_energy']:.3%}", *left_out]

    lost = ["lost bytes", "lost energy", "left out with residuals", "left out without"]
    return table(["loss", "deadline", "order", "ms", *lost], [cells(row) for row in rows])


PAGES: dict[str, Callable[[Rows], str]] = {
    "clean": clean,
    "grid": grid,
    "grid-bursty": grid,
    "incast": incast,
    "fair": fair,
    "ablation": ablation,
    "importance": importance,
    "accuracy": accuracy,
    "soak": soak,
}


def main() -> None:
    for name, render in PAGES.items():
        path = RESULTS / f"ltp-{name}.json"
        if path.is_file():
            print(f"## {name}\n\n{render(json.loads(path.read_text()))}\n")


if __name__ == "__main__":
    main()
