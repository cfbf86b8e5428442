"""Ray Train with gradwire: two lines, the import and `attach` on the model that `prepare_model` returns.

python examples/clients/with_ray.py

To run on a cluster, pass its address to `ray.init` and the number of workers to `ScalingConfig`.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # an example should not send usage statistics

import ray
import ray.train
import ray.train.torch
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import gradwire


def train_loop(settings: dict[str, Any]) -> None:
    torch.manual_seed(0)
    inputs = torch.randn(1024, 40, generator=torch.Generator().manual_seed(0))
    loader = DataLoader(TensorDataset(inputs, inputs[:, :5].argmax(1)), batch_size=32, shuffle=True)
    loader = ray.train.torch.prepare_data_loader(loader)
    net = nn.Sequential(nn.Linear(40, 256), nn.ReLU(), nn.Linear(256, 5))
    model = ray.train.torch.prepare_model(net)
    handle = gradwire.attach(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(settings["epochs"]):
        for features, labels in loader:
            loss = F.cross_entropy(model(features), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with tempfile.TemporaryDirectory() as folder:
            torch.save(net.state_dict(), Path(folder) / "net.pt")
            metrics = {"epoch": epoch + 1, "loss": loss.item(), "summary": str(handle.summary())}
            first = ray.train.get_context().get_world_rank() == 0
            ray.train.report(metrics, checkpoint=ray.train.Checkpoint.from_directory(folder) if first else None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
    with tempfile.TemporaryDirectory() as folder:
        trainer = ray.train.torch.TorchTrainer(
            train_loop,
            train_loop_config={"epochs": options.epochs},
            torch_config=ray.train.torch.TorchConfig(backend="gloo"),
            scaling_config=ray.train.ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}),
            run_config=ray.train.RunConfig(storage_path=folder),
        )
        metrics = trainer.fit().metrics or {}
    print(f"epoch {metrics['epoch']}: loss {metrics['loss']:.3f}")
    print(metrics["summary"])
    ray.shutdown()


if __name__ == "__main__":
    main()
