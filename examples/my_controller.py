"""A custom controller: at most a given number of megabytes a step, as on a link that is paid by the byte.

Select it by the name of its entry point: GRADWIRE_LEVEL=metered, or attach(model, "metered").
"""

from __future__ import annotations

import os

from gradwire.decide.base import Job
from gradwire.level import Level
from gradwire.types import Decision, StepFacts, View

# Least lossy first.
LEVELS = [Level.parse(text) for text in ("off", "fp16", "int8", "int4", "topk:0.03+int8", "topk:0.003+int8")]


class Metered:
    """Chooses the least lossy level whose bytes fit the allowance."""

    def __init__(self) -> None:
        self._allowance = float(os.environ.get("METERED_MB_A_STEP", "1.0")) * 1e6
        self._version = 0
        self._level: Level | None = None

    def decide(self, job: Job, view: View, facts: StepFacts, now: float) -> Decision:
        fitting = [level for level in LEVELS if job.wire_bytes(level) <= self._allowance]
        level = fitting[0] if fitting else LEVELS[-1]
        if level != self._level:
            self._level = level
            self._version += 1
        reason = f"{job.wire_bytes(level) / 1e6:.3g} MB a step, of {self._allowance / 1e6:.3g} MB allowed"
        return Decision(level, reason, self._version)
