"""Models: gradient sizes of well-known models in fp32 bytes, or sizes such as "244MB"."""

from __future__ import annotations

from gradwire.units import Bytes, parse_bytes

# Parameters of the reference implementations (torchvision's), four bytes each.
PARAMETERS = {"alexnet": 61_100_840, "resnet18": 11_689_512, "resnet50": 25_557_032, "vgg16": 138_357_544}


def gradient_bytes(text: str) -> Bytes:
    """Read "vgg16" or "244MB"; ConfigError names both forms."""
    known = PARAMETERS.get(text.strip().lower())
    if known is not None:
        return Bytes(known * 4)
    return parse_bytes(text, f"model (one of {', '.join(sorted(PARAMETERS))}, or a size)")
