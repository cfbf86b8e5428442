"""Hugging Face's Trainer with gradwire: no line at all under gradwire.run, because Trainer makes the DDP model itself.

torchrun --nproc-per-node 2 -m gradwire.run examples/clients/with_trainer.py
GRADWIRE_LEVEL=int8 torchrun --nproc-per-node 2 -m gradwire.run examples/clients/with_trainer.py --bf16
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments


class Inputs(Dataset[dict[str, Tensor]]):
    """Which of the first five inputs is the largest?"""

    def __init__(self) -> None:
        self.inputs = torch.randn(1024, 40, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"inputs": self.inputs[index], "labels": self.inputs[index, :5].argmax()}


class Classifier(nn.Module):
    """A model as Trainer takes it: it returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(40, 256), nn.ReLU(), nn.Linear(256, 5))

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.net(inputs)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="trainer")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--bf16", action="store_true")
    options = parser.parse_args()

    torch.manual_seed(0)
    arguments = TrainingArguments(
        output_dir=options.out,
        num_train_epochs=options.epochs,
        per_device_train_batch_size=32,
        gradient_accumulation_steps=2,
        learning_rate=3e-3,
        lr_scheduler_type="constant",
        max_grad_norm=1.0,
        bf16=options.bf16,
        use_cpu=True,
        ddp_backend="gloo",
        logging_strategy="epoch",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Trainer(model=Classifier(), args=arguments, train_dataset=Inputs())
    trainer.train()
    if trainer.is_world_process_zero():
        for entry in trainer.state.log_history:
            if "loss" in entry:
                print(f"epoch {entry['epoch']:.0f}: loss {float(entry['loss']):.3f}")


if __name__ == "__main__":
    main()
