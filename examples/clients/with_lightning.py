"""PyTorch Lightning with gradwire: two lines, the import and a callback that attaches when training starts.

python examples/clients/with_lightning.py
GRADWIRE_LEVEL=topk:0.05+int8 python examples/clients/with_lightning.py --precision bf16-mixed
"""

from __future__ import annotations

import argparse

import lightning as L
import torch
from lightning.pytorch.callbacks import LambdaCallback
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import gradwire


class Classifier(L.LightningModule):
    """Which of the first five inputs is the largest?"""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(40, 256), nn.ReLU(), nn.Linear(256, 5))

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        inputs, labels = batch
        return F.cross_entropy(self.net(inputs), labels)

    def on_train_epoch_end(self) -> None:
        inputs, labels = next(iter(loader(512)))
        with torch.no_grad():
            loss = F.cross_entropy(self.net(inputs), labels)
        self.print(f"epoch {self.current_epoch + 1}: loss {loss:.3f}")

    def on_train_end(self) -> None:
        self.print(self.handle.summary())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def loader(size: int) -> DataLoader[tuple[Tensor, ...]]:
    inputs = torch.randn(1024, 40, generator=torch.Generator().manual_seed(0))
    return DataLoader(TensorDataset(inputs, inputs[:, :5].argmax(1)), batch_size=size, shuffle=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--precision", default="32-true")
    options = parser.parse_args()

    L.seed_everything(0, verbose=False)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=options.epochs,
        precision=options.precision,
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[
            LambdaCallback(on_train_start=lambda t, module: setattr(module, "handle", gradwire.attach(t.model)))
        ],
    )
    trainer.fit(Classifier(), loader(32))


if __name__ == "__main__":
    main()
