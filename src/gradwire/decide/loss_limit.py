"""Loss limit: whether TCP's answer to loss, and not the link, limits what ranks send. Pure."""

from __future__ import annotations

import math
from typing import Final

from gradwire.types import View

# TCP's rate under loss p is about 1.22 segments / (round trip x sqrt(p)) for each connection (Mathis et al.); a rate up
# to this factor above it is taken for limited by loss. LTP is then expected to halve the time of the bytes.
SEGMENT: Final = 1448.0
MATHIS: Final = 1.22
NEAR: Final = 2.0
LEAST_LOSS: Final = 1e-5


def limited_by_loss(view: View, world_size: int) -> bool:
    """Whether TCP's answer to loss, and not the link, limits what a rank sends to the others."""
    link = view.group
    if not link.rtprop or not link.bandwidth or link.loss < LEAST_LOSS:
        return False
    each = MATHIS * SEGMENT / (link.rtprop * math.sqrt(link.loss))
    return link.bandwidth <= NEAR * (world_size - 1) * each
