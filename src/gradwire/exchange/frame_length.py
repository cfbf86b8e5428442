"""Frame length: ranks agree on how many bytes of each frame to send, where a lossless stage made frames shorter."""

from __future__ import annotations

from collections.abc import Generator

import torch
from torch import Tensor

from gradwire.compress.base import Codec
from gradwire.compress.frame import aligned
from gradwire.compress.lossless import Lossless
from gradwire.transport.lanes.base import AllReduce, Op


def trimmed(codec: Codec, frames: Tensor) -> Generator[Op, None, Tensor]:
    """Rows of frames cut to the longest length that any rank uses; frames of a fixed size need no exchange of sizes."""
    if not isinstance(codec, Lossless):
        return frames
    longest = torch.tensor([max(codec.used(frame) for frame in frames)], device=frames.device)
    yield AllReduce(longest, maximum=True)
    used = aligned(int(longest))
    return frames[:, :used].contiguous()
