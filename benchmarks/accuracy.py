"""Accuracy of every compressor at its recommended setting against uncompressed training, same epochs, several seeds.

    python benchmarks/accuracy.py [--task cnn|resnet|gpt] [--ranks 4] [--epochs 2] [--samples 20000] [--seeds 3]

Real training over gloo on loopback, of the models in harness/tasks.py. Seeds change the initial weights and the order
of the data; all levels of one seed use the same. With --write every finished training is added to
docs/results/accuracy.json at once, and the page is written again from the whole file.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.errors import GradwireError
from harness.tasks import Task, task

RESULTS = Path(__file__).parents[1] / "docs" / "results"
# Recommended settings: sparse levels warm up over the first tenth of training, as DGC does.
LEVELS = [
    "off", "fp16", "bf16", "int8", "int4", "topk:0.1+int8", "topk:0.03+int8", "topk:0.01+int8", "topk:0.003+int8",
    "topk:0.001+int8", "exactk:0.1+fp16", "sharedk:0.1+fp16", "randk:0.5+fp16", "lowrank:4", "prune:0.5+int8", "auto",
]  # fmt: skip


def train(job: Task, level: str, seed: int, options: argparse.Namespace) -> tuple[float, float]:
    """The score after the last epoch, and megabytes sent per step by this rank."""
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(seed)
    net: nn.Module = job.module()
    model = DistributedDataParallel(net, bucket_cap_mb=1)
    total = options.epochs * (options.samples // (world * options.batch))
    handle = gradwire.attach(model, {"level": level, "compress": {"warmup": total // 10}})
    optimizer = torch.optim.SGD(model.parameters(), lr=job.rate, momentum=0.9)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, job.rate, total_steps=total + 1)
    for epoch in range(options.epochs):
        for inputs, labels in job.epoch(1000 * seed + epoch, rank, world, options.batch):
            loss = F.cross_entropy(model(inputs), labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            if job.clip is not None:
                nn.utils.clip_grad_norm_(net.parameters(), job.clip)
            optimizer.step()
            schedule.step()
    sent = handle.summary().wire_bytes / max(handle.summary().steps, 1)
    handle.close()
    return job.score(net), sent / 1e6


def worker(rank: int, options: argparse.Namespace, store: str) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=options.ranks)
    job = task(options.task, options.data_dir, options.samples)
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        for level in options.levels.split(","):
            reached, sent = train(job, level, seed, options)
            if rank == 0:
                print(f"{job.name}, seed {seed}, {level}: {reached:.3f} {job.unit}, {sent:.3f} MB a step", flush=True)
                if options.write:
                    save(job, options, {"level": level, "seed": seed, "score": reached, "mb": sent})
    dist.destroy_process_group()


def save(job: Task, options: argparse.Namespace, run: dict[str, Any]) -> None:
    """Add a training to the file; runs with another size of the task are dropped."""
    path = RESULTS / "accuracy.json"
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    size = {"ranks": options.ranks, "epochs": options.epochs, "samples": options.samples, "batch": options.batch}
    known = results.get(job.name, {})
    runs = known.get("runs", []) if known.get("size") == size else []
    runs = [one for one in runs if (one["level"], one["seed"]) != (run["level"], run["seed"])] + [run]
    results[job.name] = {"about": job.about, "unit": job.unit, "size": size, "runs": runs, "rows": summarise(runs)}
    path.write_text(json.dumps(results, indent=1) + "\n")
    (RESULTS / "accuracy.md").write_text(page(results))


def summarise(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Per level: mean score, mean difference to `off` of the same seed, and its range."""
    base = {run["seed"]: run["score"] for run in runs if run["level"] == "off"}
    rows = []
    for level in sorted({run["level"] for run in runs}, key=LEVELS.index):
        own = [run for run in runs if run["level"] == level and run["seed"] in base]
        gaps = [run["score"] - base[run["seed"]] for run in own]
        if own:
            rows.append({
                "level": level, "seeds": len(own), "score": statistics.mean(run["score"] for run in own),
                "gap": statistics.mean(gaps), "range": [min(gaps), max(gaps)],
                "mb": statistics.mean(run["mb"] for run in own),
            })  # fmt: skip
    return rows


def page(results: dict[str, Any]) -> str:
    lines = ["# Accuracy of every compressor", ""]
    lines += ["The difference is the mean over seeds to `off` of the same seed, after the same number of steps.", ""]
    for name, one in results.items():
        size = one["size"]
        lines += [
            f"## {name}: {one['about']}", "",
            f"    python benchmarks/accuracy.py --task {name} --ranks {size['ranks']} --epochs {size['epochs']} "
            f"--samples {size['samples']} --batch {size['batch']} --write", "",
            f"{size['ranks']} ranks x batch {size['batch']}, {size['epochs']} epochs.", "",
            f"| level | {one['unit']} | difference | range | seeds | MB sent per rank and step |",
            "|---|---|---|---|---|---|",
        ]  # fmt: skip
        for row in one["rows"]:
            gap = f"{row['gap']:+.2f} | {row['range'][0]:+.2f}..{row['range'][1]:+.2f}"
            lines.append(f"| `{row['level']}` | {row['score']:.2f} | {gap} | {row['seeds']} | {row['mb']:.3f} |")
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="cnn", help="cnn, resnet or gpt")
    parser.add_argument("--data-dir", type=Path, default=None, help="holds fashion-mnist/, cifar10/, tinyshakespeare/")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=32, help="per rank")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--levels", default=",".join(LEVELS))
    parser.add_argument("--write", action="store_true", help="add to docs/results/accuracy.json and .md")
    options = parser.parse_args()
    try:
        task(options.task, options.data_dir, options.samples)
    except GradwireError as error:
        sys.exit(f"accuracy: {error}")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(worker, (options, str(Path(folder) / "store")), nprocs=options.ranks)


if __name__ == "__main__":
    main()
