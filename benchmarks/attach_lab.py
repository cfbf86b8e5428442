"""`attach(model)` in the lab: time of a step and of the whole job, with plan = "auto" and without a plan.

    python benchmarks/attach_lab.py four-regions [--hosts N] [--plans auto,none] [--steps 120] [--dilate 1] [--out FILE]

Every rank is a host of the lab's network and trains an MLP of 784-768-256-10 (0.8 million parameters, Adam, batch 32)
with nothing else set, on the demo's digits, enlarged to 28 x 28. A step's time is the median of the last third of the
steps; the job's is that of all steps, from the first forward pass on. What carried the steps is read from the session's
events.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

MARK = "ATTACH "
BATCH = 32


def worker(plan: str, steps: int) -> None:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn import functional as F
    from torch.nn.parallel import DistributedDataParallel

    import gradwire
    from gradwire.demo.data import load
    from gradwire.events import Event, TransportChosen

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = (nn.Linear(784, 768), nn.ReLU(), nn.Linear(768, 256), nn.ReLU(), nn.Linear(256, 10))
    model = DistributedDataParallel(nn.Sequential(*layers))
    handle = gradwire.attach(model, plan=plan)
    chosen: list[Event] = []
    handle.add_sink(lambda event: chosen.append(event) if isinstance(event, TransportChosen) else None)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    draw = torch.Generator().manual_seed(dist.get_rank())
    data = load("digits")
    images = F.interpolate(data.train_images, size=(28, 28), mode="bilinear").flatten(1)
    ends = [time.monotonic()]
    for _ in range(steps):
        sample = torch.randint(len(images), (BATCH,), generator=draw)
        loss = F.cross_entropy(model(images[sample]), data.train_labels[sample])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ends.append(time.monotonic())
    summary = handle.summary()
    if dist.get_rank() == 0:
        took = [after - before for before, after in itertools.pairwise(ends)]
        row = {
            "plan": plan or "none",
            "step": statistics.median(took[-steps // 3 :]),
            "whole": ends[-1] - ends[0],
            "levels": dict(summary.levels),
            "chosen": [[one.step, one.transport, one.reason] for one in chosen if isinstance(one, TransportChosen)],
        }
        print(MARK + json.dumps(row), flush=True)
    handle.close()
    dist.destroy_process_group()


def measure(network: str, hosts: int | None, plan: str, steps: int, dilate: float) -> dict[str, Any]:
    from gradwire.lab import Lab
    from gradwire.network import preset

    lines: list[str] = []
    with Lab(preset(network, hosts) if hosts else preset(network), dilate=dilate) as lab:
        result = lab.run(
            [sys.executable, __file__, network, "--worker", plan, "--steps", str(steps)],
            timeout=1200,
            on_line=lambda host, line: lines.append(line),
        )
    found = [json.loads(line.removeprefix(MARK)) for line in lines if line.startswith(MARK)]
    if not found:
        sys.exit("\n".join(lines[-20:]))
    return {**found[0], "network": network, "lab": result.stats.verdict}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", help="a preset of the lab (gradwire networks)")
    parser.add_argument("--hosts", type=int, default=None)
    parser.add_argument("--plans", default="auto,none")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--dilate", type=float, default=1.0, help="stretch time by this factor on a busy machine")
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--worker", default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        worker("" if options.worker == "none" else options.worker, options.steps)
        return
    rows = []
    for plan in options.plans.split(","):
        row = measure(options.network, options.hosts, plan, options.steps, options.dilate)
        rows.append(row)
        print(
            f"{row['network']}, plan {row['plan']}: {row['step'] * 1e3:.0f} ms a step at the end, "
            f"{row['whole']:.1f} s for {options.steps} steps; levels {row['levels']}; lab: {row['lab']}"
        )
        for step, transport, reason in row["chosen"]:
            print(f"    step {step}, {transport}: {reason}")
    if options.out:
        options.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
