"""Frame cost: what a frame along a tree costs its sender's or receiver's processor.

Two parts: a frame's way through the executor and the wire (wake-ups, callbacks, headers), which does not depend on its
size, and the codec's work on its elements. `python benchmarks/tree_frames.py` measures both.
"""

from __future__ import annotations

from typing import Final

from gradwire.decide.ladder import LADDER
from gradwire.level import Level

# Seconds of processor time of one end of a frame without its elements.
FRAME: Final = 100e-6
# Of values as they are, by their format; reading and writing them at the indices of a mask takes about as long again.
_WORK: Final = {rung.level.values: rung.work for rung in LADDER if rung.level.select == "all"}
_AT_INDICES: Final = 2.0


def frame_seconds(level: Level, elements: int, scale: float = 1.0) -> float:
    """Of one end of a frame that carries so many elements at this level; `scale` is how much longer work takes on this
    machine than the ladder says."""
    # The ladder's work is that of encoding and decoding once: half of it at each end of a frame.
    work = 1e-9 * _WORK.get(level.values, 0.0) / 2
    return scale * (FRAME + work * elements * (_AT_INDICES * level.ratio if level.sparse else 1.0))
