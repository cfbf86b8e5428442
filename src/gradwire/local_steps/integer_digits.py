"""Integer digits: integers as float32 values whose mean over ranks is that of the integers.

In: integer or boolean tensors. Out: DIGITS values for each element, digits to the base 2^11: sums of the digits of
thousands of ranks stay below 2^24, up to where float32 is exact. Where all ranks have the same integer, as counters and
constants do, its mean is that integer to the bit; where they differ it is the rounded mean.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

BITS: Final = 11
DIGITS: Final = 6


def to_digits(values: Tensor) -> Tensor:
    """Flat: all lowest digits first. The highest digit has the sign."""
    whole = values.detach().flatten().to("cpu", torch.int64)
    lower = [(whole >> (BITS * at)) & ((1 << BITS) - 1) for at in range(DIGITS - 1)]
    return torch.cat([*lower, whole >> (BITS * (DIGITS - 1))]).float()


def from_digits(digits: Tensor, like: Tensor) -> Tensor:
    """The integers whose digits these are, with the form of `like`. Whole and broken parts of a mean are added
    separately, so that large integers are not rounded."""
    parts = digits.double().view(DIGITS, like.numel())
    whole = parts.floor()
    places = [1 << (BITS * at) for at in range(DIGITS)]
    integers = sum(part.long() * place for part, place in zip(whole, places, strict=True))
    broken = sum(part * place for part, place in zip(parts - whole, places, strict=True))
    found = integers + torch.as_tensor(broken).round().long()
    return torch.as_tensor(found).view(like.shape).to(like)
