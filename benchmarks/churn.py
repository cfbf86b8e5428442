"""Local steps with replicas that are killed and restarted: what the kills cost, and whether replicas stay equal.

    python benchmarks/churn.py [--replicas 32] [--kills 60] [--sync-every 20] [--level int8] [--plan NAME] [--out DIR]

Replicas are processes of this machine that train a small network on handwritten digits, along the trees of a plan over
TCP on loopback. Kills (SIGKILL) come at seeded random times of rounds; a new process replaces each at once and joins at
an end of a round. churn.json has the figures, churn.md is generated from it. Ends with 1 where a promise is broken.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness.churn_result import ChurnResult, result_of
from harness.churn_run import ChurnRun, script
from harness.facts import machine_facts

# The first rounds are without kills: DDP exchanges its bucket layout in the second forward pass.
FIRST = 2


def job_of(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "sync_every": options.sync_every,
        "timeout": 300.0,
        "parent": os.getpid(),
        "config": {
            "level": options.level,
            "plan": options.plan,
            # Idle links are not probed: dozens of processes share two cores, which is what a probe would measure.
            "planning": {"elastic": True, "rejoin": 240.0, "aware": False, "probe": False},
            # A dead process is found by its closed connection; a live one may be silent for long on a busy machine.
            "transport": {"kind": "tcp", "timeout": 240.0, "dead_after": 120.0, "connect": 240.0},
            "observe": {"verify": 1},
        },
    }


def measure(options: argparse.Namespace) -> ChurnResult:
    kills = script(options.kills, FIRST, options.rounds or options.kills, options.seed)
    run = ChurnRun(options.replicas, job_of(options), kills, options.seed, options.limit)
    return result_of(run.run(), options.replicas, options.sync_every)


def page(found: dict[str, Any]) -> str:
    one, options, facts = found["result"], found["options"], found["machine"]
    every, kills = options["sync_every"], one["kills"]
    share, possible = one["useful"] / one["made"], one["useful"] / one["possible"]
    verdict = "every promise kept" if not one["problems"] else f"BROKEN: {'; '.join(one['problems'])}"
    command = f"python benchmarks/churn.py --replicas {one['replicas']} --kills {kills} --sync-every {every}"
    command += f" --rounds {options['rounds']}" if options["rounds"] else ""
    rows = [
        ("useful steps: in the global weights", f"{one['useful']:,} of {one['made']:,} made ({share:.2%})"),
        ("of what a run without kills makes in as many rounds", f"{possible:.1%}"),
        ("lost steps, all in the round of a death", f"{one['lost']:,}; at most {one['most_lost']} by one death"),
        ("rounds of a rank lost twice, or counted twice", "none" if not one["problems"] else "see above"),
        ("deaths in the last step of a round or in its exchange", f"{one['in_exchange']} of {kills}"),
        ("digests of weights and buffers compared at ends of rounds", f"{one['digests']:,} at {one['boundaries']}"),
        ("a new process until it has joined", f"{one['join_median']:.1f} s, at most {one['join_most']:.1f} s"),
        ("a round", f"{one['round_median']:.2f} s, at most {one['round_most']:.2f} s"),
        ("accuracy of the global weights at the end", f"{one['accuracy']:.1%}"),
    ]  # fmt: skip
    table = "\n".join(f"| {what} | {value} |" for what, value in rows)
    return f"""# Local steps with ranks that die and rejoin

    {command} --plan {options["plan"]} --level {options["level"]} --seed {options["seed"]} --out docs/results

{one["replicas"]} replicas as processes of one machine, {kills} kills at random times and as many new processes, {one["rounds"]} rounds of {every} steps at level `{options["level"]}`: {verdict}. Handwritten digits, plan `{options["plan"]}` over TCP on loopback, `planning.elastic`. gradwire {facts["revision"]}, torch {facts["torch"]}, {facts["cores"]} cores, load {facts["load_before"]} before the run, {one["seconds"]:.0f} s in all.

| | |
|---|---|
{table}

*Promises*: all replicas report the same contributors of each round; weights and buffers are equal to the bit on all replicas at every end of a round, also on a process that joins there; a process that is not killed loses no step; a killed one loses steps of one round only. `ranks` in [`outer_stepped`](../events.md) events are a round's contributors. Times are those of a machine on which all replicas share the cores, and that others used at the same time: they are no measure of how fast a round is.
"""  # noqa: E501 - paragraphs of a page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, default=32)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--sync-every", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=0, help="over which kills are spread; 0: as many as kills")
    parser.add_argument("--level", default="int8")
    parser.add_argument("--plan", default="loadaware")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=float, default=1500.0, help="seconds after which the run is an error")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    facts, result = machine_facts(), measure(options)
    shown = {name: value for name, value in vars(options).items() if name != "out"}
    found = {"machine": facts, "options": shown, "result": asdict(result)}
    print(page(found))
    if options.out:
        (options.out / "churn.json").write_text(json.dumps(found, indent=1) + "\n")
        (options.out / "churn.md").write_text(page(found))
    sys.exit(1 if result.problems else 0)


if __name__ == "__main__":
    main()
