"""Frame cost: what a frame along a tree costs its sender's or receiver's processor.

Two parts: a frame's way through the executor and the wire (wake-ups, callbacks, headers), which does not depend on its
size, and the codec's work on its elements. `python benchmarks/tree_frames.py` measures both.
"""

from __future__ import annotations

from typing import Final

from gradwire.decide.ladder import LADDER
from gradwire.decide.summable_controller import summable
from gradwire.level import Level

# Seconds of processor time of one end of a frame without its elements.
FRAME: Final = 80e-6
_WORK: Final = {summable(rung.level): rung.work for rung in reversed(LADDER)}


def frame_seconds(level: Level, elements: int, scale: float = 1.0) -> float:
    """Of one end of a frame that carries so many elements at this level; `scale` is how much longer work takes on this
    machine than the ladder says."""
    # The ladder's work is that of encoding and decoding once: half of it at each end of a frame.
    return scale * (FRAME + 1e-9 * _WORK.get(summable(level), 0.0) * elements / 2)
