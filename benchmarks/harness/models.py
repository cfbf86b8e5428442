"""Models that the benchmarks train or imitate, with the sizes used in the papers.

resnet18, vgg16 and resnet50 are the CIFAR variants (3 x 3 stem, no early pooling): 11.2 M, 15.2 M and 23.5 M
parameters. vgg16 has one hidden layer of 512 instead of ImageNet's two of 4096 (138 M), so that 8 ranks fit in memory.
chargpt has 6 layers of width 384 over characters: 10.7 M.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CONTEXT = 64
CHARACTERS = 65
VGG16 = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)


class Basic(nn.Module):
    """Two 3 x 3 convolutions with a shortcut."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(inputs, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width),
        )  # fmt: skip
        self.short = _short(inputs, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.main(x) + self.short(x))


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3, 1 x 1 with a shortcut; four times as wide at its ends."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width),
        )  # fmt: skip
        self.short = _short(inputs, 4 * width, stride)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.main(x) + self.short(x))


def _short(inputs: int, outputs: int, stride: int) -> nn.Module:
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


def _resnet(block: type[Basic] | type[Bottleneck], depths: tuple[int, ...]) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
    inputs = 64
    for stage, depth in enumerate(depths):
        for index in range(depth):
            width = 64 * 2**stage
            layers.append(block(inputs, width, 2 if stage and index == 0 else 1))
            inputs = width * block.expansion
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10))


def resnet18() -> nn.Module:
    return _resnet(Basic, (2, 2, 2, 2))


def resnet50() -> nn.Module:
    return _resnet(Bottleneck, (3, 4, 6, 3))


def vgg16() -> nn.Module:
    layers: list[nn.Module] = []
    inputs = 3
    for width in VGG16:
        if width == 0:
            layers.append(nn.MaxPool2d(2))
            continue
        layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
        inputs = width
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 512), nn.ReLU(inplace=True), nn.Linear(512, 10))


class GptBlock(nn.Module):
    """Attention and a perceptron, each behind a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        out: Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return out


class CharGpt(nn.Module):
    """A small GPT over characters."""

    def __init__(self, layers: int = 6, width: int = 384, heads: int = 6) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(CHARACTERS, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(GptBlock(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CHARACTERS, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        logits: Tensor = self.head(self.norm(self.blocks(self.token(tokens) + self.place(places))))
        return logits.flatten(0, 1)


def demo_cnn() -> nn.Module:
    """The 0.42 M CNN of `gradwire demo`."""
    from gradwire.demo.train import ConvNet

    return ConvNet(28)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "cnn": demo_cnn, "resnet18": resnet18, "vgg16": vgg16, "resnet50": resnet50, "chargpt": CharGpt,
}  # fmt: skip
