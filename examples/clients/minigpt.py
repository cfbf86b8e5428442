"""A small GPT, trained as public single-file scripts do it, without any reference to gradwire.

torchrun --nproc-per-node 2 examples/clients/minigpt.py --out /tmp/minigpt
torchrun --nproc-per-node 2 -m gradwire.run examples/clients/minigpt.py --out /tmp/minigpt --resume

Its own DDP wrapping, gradient accumulation under `no_sync`, bfloat16 autocast, gradient clipping, a warm-up and cosine
schedule, and checkpoints that rank 0 writes and every rank reads.
"""

from __future__ import annotations

import argparse
import contextlib
import math
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel


class Block(nn.Module):
    """Causal self-attention, then a feed-forward network, each with a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_feed = nn.LayerNorm(width), nn.LayerNorm(width)
        self.to_qkv, self.to_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.to_qkv(self.before_attention(x)).chunk(3, dim=-1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.to_out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.feed(self.before_feed(x))


class MiniGPT(nn.Module):
    """Characters in, the loss of predicting each next one out. The output layer shares the embedding's weights."""

    def __init__(self, vocabulary: int, context: int, width: int = 64, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        x = self.tokens(inputs) + self.places(torch.arange(inputs.shape[1], device=inputs.device))
        logits = self.head(self.norm(self.blocks(x)))
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the checkpoint")
    parser.add_argument("--data", type=Path, default=Path(__file__), help="any text; this file by default")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--accumulate", type=int, default=2, help="micro-batches per step")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--context", type=int, default=32)
    parser.add_argument("--rate", type=float, default=3e-3, help="highest learning rate")
    parser.add_argument("--resume", action="store_true", help="resume from the checkpoint")
    return parser.parse_args()


def learning_rate(step: int, steps: int, highest: float, warmup: int = 5) -> float:
    if step < warmup:
        return highest * (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - warmup)
    return highest * (0.1 + 0.45 * (1 + math.cos(math.pi * min(progress, 1.0))))


def batch(text: Tensor, options: argparse.Namespace, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    starts = torch.randint(len(text) - options.context - 1, (options.batch,), generator=generator)
    rows = torch.stack([text[start : start + options.context + 1] for start in starts])
    return rows[:, :-1], rows[:, 1:]


def main() -> None:
    options = arguments()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1337)

    characters = sorted(set(options.data.read_text()))
    text = torch.tensor([characters.index(character) for character in options.data.read_text()])
    raw = MiniGPT(len(characters), options.context)
    decayed = [parameter for parameter in raw.parameters() if parameter.dim() >= 2]
    others = [parameter for parameter in raw.parameters() if parameter.dim() < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=options.rate, betas=(0.9, 0.95))

    first, file = 0, options.out / "checkpoint.pt"
    if options.resume:
        saved = torch.load(file, weights_only=True)
        raw.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"]
    model = DistributedDataParallel(raw)

    for step in range(first, options.steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, options.steps, options.rate)
        generator = torch.Generator().manual_seed(step * dist.get_world_size() + rank)
        for micro in range(options.accumulate):
            last = micro == options.accumulate - 1
            with (
                contextlib.nullcontext() if last else model.no_sync(),
                torch.autocast("cpu", dtype=torch.bfloat16),
            ):
                loss = model(*batch(text, options, generator)) / options.accumulate
            with contextlib.nullcontext() if last else model.no_sync():
                loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if rank == 0 and (step == first or step == options.steps - 1):
            print(f"step {step + 1}: loss {loss.item() * options.accumulate:.3f}, gradient norm {norm:.2f}")

    if rank == 0:
        options.out.mkdir(parents=True, exist_ok=True)
        state = {"model": raw.state_dict(), "optimizer": optimizer.state_dict(), "step": options.steps}
        torch.save(state, file)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
