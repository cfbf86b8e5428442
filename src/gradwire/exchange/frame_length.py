"""Squeeze: agree how many bytes of each frame must travel, where a lossless stage made them shorter."""

from __future__ import annotations

from collections.abc import Generator

import torch
from torch import Tensor

from gradwire.compress.base import Codec
from gradwire.compress.frame import aligned
from gradwire.compress.lossless import Lossless
from gradwire.transport.lanes.base import AllReduce, Op


def squeezed(codec: Codec, frames: Tensor) -> Generator[Op, None, Tensor]:
    """Cut rows of frames to the longest that any rank uses; frames of a fixed size pass without a round of sizes."""
    if not isinstance(codec, Lossless):
        return frames
    longest = torch.tensor([max(codec.used(frame) for frame in frames)], device=frames.device)
    yield AllReduce(longest, maximum=True)
    used = aligned(int(longest))
    return frames[:, :used].contiguous()
