"""Hugging Face Accelerate with gradwire: two lines, the import and `attach` on the model that `prepare` returns.

torchrun --nproc-per-node 2 examples/clients/with_accelerate.py
GRADWIRE_LEVEL=int8 torchrun --nproc-per-node 2 examples/clients/with_accelerate.py --mixed-precision bf16
"""

from __future__ import annotations

import argparse

import torch
from accelerate import Accelerator
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import gradwire


def dataset() -> TensorDataset:
    inputs = torch.randn(1024, 40, generator=torch.Generator().manual_seed(0))
    return TensorDataset(inputs, inputs[:, :5].argmax(1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--mixed-precision", default="no", choices=["no", "bf16"])
    options = parser.parse_args()

    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, mixed_precision=options.mixed_precision, gradient_accumulation_steps=2)
    net = nn.Sequential(nn.Linear(40, 256), nn.ReLU(), nn.Linear(256, 5))
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    loader = DataLoader(dataset(), batch_size=32, shuffle=True)
    model, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    handle = gradwire.attach(model)

    for epoch in range(options.epochs):
        for inputs, labels in loader:
            with accelerator.accumulate(model):
                loss = F.cross_entropy(model(inputs), labels)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        accelerator.print(f"epoch {epoch + 1}: loss {accelerator.gather(loss.detach()).mean():.3f}")
    accelerator.print(handle.summary())
    accelerator.end_training()


if __name__ == "__main__":
    main()
