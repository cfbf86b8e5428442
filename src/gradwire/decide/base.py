"""The decide room's contract: what the network is like and what the last step was like in, a decision out.

Controllers are pure: state in the object, time and measurements as arguments, no clock, no torch, no network. The same
object runs in training, in tests and in virtual time. Only rank 0's controller is asked, by one thread that is not the
training's; its decision reaches the others with the next pulse, so ranks cannot disagree and a controller need not be
deterministic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from gradwire.flow import Bucket, Decision, Footprint, StepFacts, View
from gradwire.level import Level


@dataclass(frozen=True, slots=True)
class Job:
    """What does not change while training: who takes part, the buckets, and what a level would send for one."""

    world_size: int
    buckets: tuple[Bucket, ...]
    footprint: Callable[[Level, Bucket], Footprint]

    @property
    def numel(self) -> int:
        return sum(bucket.numel for bucket in self.buckets)

    def wire_bytes(self, level: Level) -> int:
        return sum(self.footprint(level, bucket).wire_bytes for bucket in self.buckets)


class Controller(Protocol):
    """Chooses one level for the whole job, again after every step.

    A class of your own, named in the entry-point group `gradwire.controllers`, is chosen by its name as the level.
    """

    def decide(self, job: Job, view: View, facts: StepFacts, now: float) -> Decision:
        """`facts` are the last step's, merged over ranks, with rank 0's bucket times."""
        ...
