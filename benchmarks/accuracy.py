"""Accuracy of every compressor at its recommended setting against none, same epochs, several seeds.

    python benchmarks/accuracy.py [--data fashion-mnist] [--ranks 4] [--epochs 2] [--samples 20000] [--seeds 3]

Real training of the demo's CNN over gloo on loopback. Seeds change the initial weights and the order of the data; the
levels of one seed see the same. The table goes to docs/results/accuracy.md with --write.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from rich.console import Console
from rich.table import Table
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.demo.data import Dataset, load
from gradwire.demo.train import ConvNet, accuracy

# Recommended settings: sparse levels warm up over the first tenth of training, as DGC does.
LEVELS = [
    "off", "fp16", "bf16", "int8", "int4", "topk:0.1+int8", "exactk:0.1+fp16", "sharedk:0.1+fp16",
    "randk:0.5+fp16", "lowrank:4", "prune:0.5+int8", "auto",
]  # fmt: skip


def train(level: str, seed: int, data: Dataset, options: argparse.Namespace) -> tuple[float, float]:
    """Test accuracy after the last epoch, and megabytes sent per step by this rank."""
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(seed)
    net = ConvNet(data.train_images.shape[-1])
    model = DistributedDataParallel(net, bucket_cap_mb=1)
    count = min(options.samples, len(data.train_images))
    steps = count // (world * options.batch)
    total = steps * options.epochs
    handle = gradwire.attach(model, {"level": level, "compress": {"warmup": total // 10}})
    optimizer = torch.optim.SGD(model.parameters(), lr=options.rate, momentum=0.9)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, options.rate, total_steps=total)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(options.epochs):
        order = torch.randperm(count, generator=generator)[: steps * world * options.batch]
        for indices in order.view(steps, world, options.batch)[:, rank]:
            loss = F.cross_entropy(model(data.train_images[indices]), data.train_labels[indices])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()
    sent = handle.summary().wire_bytes / max(handle.summary().steps, 1)
    handle.close()
    return accuracy(net, data.test_images, data.test_labels), sent / 1e6


def worker(rank: int, options: argparse.Namespace, store: str) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=options.ranks)
    data = load(options.data, options.data_dir)
    out = Path(store).with_name("results.jsonl")
    for seed in range(options.seeds):
        for level in options.levels.split(","):
            reached, sent = train(level, seed, data, options)
            if rank == 0:
                with out.open("a") as file:
                    file.write(json.dumps({"level": level, "seed": seed, "accuracy": reached, "mb": sent}) + "\n")
                print(f"seed {seed} {level}: {reached:.4f}, {sent:.3f} MB a step", flush=True)
    dist.destroy_process_group()


def summarise(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Per level: mean accuracy, mean difference to `off` of the same seed, and its range."""
    base = {row["seed"]: row["accuracy"] for row in rows if row["level"] == "off"}
    levels = list(dict.fromkeys(row["level"] for row in rows))
    result = []
    for level in levels:
        own = [row for row in rows if row["level"] == level]
        gaps = [100 * (row["accuracy"] - base[row["seed"]]) for row in own]
        mean = statistics.mean(row["accuracy"] for row in own)
        mb = statistics.mean(row["mb"] for row in own)
        result.append(
            {
                "level": level,
                "accuracy": mean,
                "points": statistics.mean(gaps),
                "range": [min(gaps), max(gaps)],
                "mb": mb,
            }
        )
    return result


def markdown(rows: list[dict[str, Any]], options: argparse.Namespace, data: str) -> str:
    lines = [
        "# Accuracy of every compressor",
        "",
        f"    python benchmarks/accuracy.py --data {data} --ranks {options.ranks} --epochs {options.epochs} "
        f"--samples {options.samples} --seeds {options.seeds} --write",
        "",
        f"The demo's CNN on {data}, {options.ranks} ranks x batch {options.batch}, {options.epochs} epochs of "
        f"{options.samples} images, {options.seeds} seeds. `points` is the mean difference to `off` of the same seed.",
        "",
        "| level | accuracy | points | range | MB sent per rank and step |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        low, high = row["range"]
        spread = f"{row['points']:+.2f} | {low:+.2f}..{high:+.2f}"
        lines.append(f"| `{row['level']}` | {row['accuracy']:.2%} | {spread} | {row['mb']:.3f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="fashion-mnist")
    parser.add_argument("--data-dir", type=Path, default=None)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=32, help="per rank")
    parser.add_argument("--rate", type=float, default=0.05)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--levels", default=",".join(LEVELS))
    parser.add_argument("--write", action="store_true", help="write docs/results/accuracy.md and .json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        mp.spawn(worker, (options, store), nprocs=options.ranks)
        rows = [json.loads(line) for line in (Path(folder) / "results.jsonl").read_text().splitlines()]
    found = summarise(rows)
    table = Table(title="accuracy")
    for column in ("level", "accuracy", "points", "MB a step"):
        table.add_column(column)
    for row in found:
        table.add_row(row["level"], f"{row['accuracy']:.2%}", f"{row['points']:+.2f}", f"{row['mb']:.3f}")
    Console().print(table)
    print(json.dumps({"bench": "accuracy", "rows": found}))
    if options.write:
        target = Path(__file__).parents[1] / "docs" / "results"
        target.mkdir(parents=True, exist_ok=True)
        (target / "accuracy.md").write_text(markdown(found, options, options.data))
        (target / "accuracy.json").write_text(json.dumps({"rows": found, "runs": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
