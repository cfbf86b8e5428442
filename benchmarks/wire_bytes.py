"""Bytes on the wire of every compressor, counted on the sockets, against what the session predicts.

    python benchmarks/wire_bytes.py --data DIR --out DIR

Three models (ResNet-18 and the character GPT paced, the demo's CNN for real), 4 hosts, a few steps each. Bytes do not
depend on time, so one round is enough, also on a busy machine.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from gradwire.errors import GradwireError
from gradwire.units import Bytes
from harness.case import Case, measure, options_of
from harness.result import Row, as_json

LEVELS = (
    "off", "fp16", "bf16", "int8", "int4", "int2", "int8+zstd", "topk:0.1+int8", "topk:0.01", "topk:0.01+int8",
    "topk:0.01+int8+zstd", "topk:0.001+int8", "exactk:0.01+int8", "sharedk:0.01+int8", "randk:0.01+int8",
    "prune:0.5+topk:0.01+int8", "lowrank:1", "lowrank:4",
)  # fmt: skip
WORKLOADS = ("paced:resnet18", "paced:chargpt", "real:cnn")
CASE = Case(
    "wire-bytes",
    "",
    networks=("lan1g",),
    hosts=4,
    contestants=("ddp", "fp16-hook", "powersgd-r4", "topk-0.01", *(f"gradwire:{level}" for level in LEVELS)),
    title="Bytes on the wire, per rank and step",
    compute_ms=0.0,
    repeat=1,
)
ABOUT = """\
`payload` is what TCP carried, once: `tcpi_bytes_sent` less `tcpi_bytes_retrans` of every connection a rank holds except
those to the store, read before and after the measured steps. It contains gloo's own framing (48 bytes a message) and
one barrier, but no TCP, IP or Ethernet headers. `wire` is what the rank's access link carried, counted by the emulator:
all headers (38 bytes of Ethernet, 52 of IP and TCP a packet), acknowledgements, retransmissions. `predicted` is
`handle.summary().wire_bytes` over the same steps; `of predicted` is payload / predicted: 1.00 means that the
prediction is exact. `less` is plain DDP's payload over this one's.
"""


def lines_of(rows: list[Row]) -> list[str]:
    plain = next(row for row in rows if row.contestant == "ddp")
    shown = []
    for row in rows:
        if row.error:
            shown.append(f"| {row.contestant} | failed: {row.error} | | | | |")
            continue
        predicted = "" if not row.predicted else str(Bytes(round(row.predicted)))
        ratio = "" if not row.predicted else f"{row.payload / row.predicted:.3f}"
        sizes = f"{Bytes(round(row.payload))} | {Bytes(round(row.wire))} | {predicted} | {ratio}"
        shown.append(f"| {row.contestant} | {sizes} | {plain.payload / row.payload:.1f}x |")
    return shown


def document(results: list[dict[str, Any]], command: str) -> str:
    machine = results[0]["machine"]
    lines = [
        f"# {CASE.title}",
        "",
        f"    {command}",
        "",
        f"torch {machine['torch']}, gradwire {machine['revision']}.",
        ABOUT,
    ]
    for one in results:
        work = one["workloads"][0]
        lines += [f"## {work['about']}, {work['parameters']:,} parameters", ""]
        lines += ["| contestant | payload | wire | predicted | of predicted | less |", "|---|---|---|---|---|---|"]
        lines += [*lines_of(one["rows"]), ""]
    return "\n".join(lines)


def main() -> None:
    options = options_of(CASE)
    options.quick = True
    workloads = options.workload or list(WORKLOADS)
    results = []
    try:
        for workload in workloads:
            options.workload = [workload]
            results.append(measure(CASE, options, Console(stderr=True)))
    except GradwireError as error:
        sys.exit(f"wire-bytes: {error}")
    text = document(results, results[0]["command"])
    print(text)
    for one in results:
        one["rows"] = [as_json(row) for row in one["rows"]]
    if options.out:
        folder: Path = options.out
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "wire-bytes.md").write_text(text)
        (folder / "wire-bytes.json").write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results))


if __name__ == "__main__":
    main()
