"""Records what the paced workload imitates: shape, gradient scale and tail, and compute share of each parameter.

    python benchmarks/record_gradients.py --data DIR [MODEL ...]    writes benchmarks/harness/recorded/MODEL.json

Per parameter: `scale` is the root mean square of its gradient, `tail` the standard deviation of ln |g| (0.9 to 1.1 is
a Gaussian's, more is heavier), `flops` the multiplications of its layer per sample, which share out the compute time.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from harness.data import batches
from harness.models import MODELS
from harness.recorded import FOLDER

STEPS = 12


def record(name: str, directory: Path | None, batch: int) -> dict[str, Any]:
    torch.manual_seed(0)
    net = MODELS[name]()
    flops: dict[str, float] = {}
    for path, module in net.named_modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.register_forward_hook(lambda m, _, out, path=path: flops.update({path: _flops(m, out, batch)}))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    data, source = batches(name, directory, batch, 0)
    for _ in range(STEPS):
        inputs, labels = next(source)
        optimizer.zero_grad()
        F.cross_entropy(net(inputs), labels).backward()
        optimizer.step()
    rows = [
        {
            "name": path,
            "shape": list(parameter.shape),
            **_spread(parameter),
            "flops": round(flops.get(path.rpartition(".")[0], 0)) if path.endswith("weight") else 0,
        }
        for path, parameter in net.named_parameters()
    ]
    return {"model": name, "data": data, "batch": batch, "steps": STEPS, "parameters": rows}


def _flops(module: nn.Module, out: Tensor, batch: int) -> float:
    weight = module.weight
    assert isinstance(weight, Tensor)
    places = out.numel() / batch / weight.shape[0]
    return weight.numel() * places


def _spread(parameter: Tensor) -> dict[str, float]:
    assert parameter.grad is not None
    gradient = parameter.grad.flatten()
    inside = gradient[gradient != 0].abs()
    tail = float(inside.log().std()) if len(inside) > 1 else 1.0
    return {"scale": float(f"{gradient.square().mean().sqrt():.3g}"), "tail": round(tail, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=[name for name in MODELS if name != "cnn"])
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--batch", type=int, default=16)
    options = parser.parse_args()
    for name in options.models:
        recording = record(name, options.data, options.batch)
        rows = ",\n".join(json.dumps(row) for row in recording.pop("parameters"))
        head = json.dumps(recording)[:-1]
        (FOLDER / f"{name}.json").write_text(f'{head}, "parameters": [\n{rows}\n]}}\n')
        print(name, recording)


if __name__ == "__main__":
    main()
