"""Interface of the decision stage: `Controller` (network view and step facts in, a decision out) and `Job`.

Controllers are pure: state in the object, time and measurements as arguments, no clock, no torch, no network. The same
object runs in training, in tests and in virtual time. Only rank 0's controller decides, in one thread that is not the
training thread; its decision is sent to the other ranks, so ranks cannot disagree and a controller need not be
deterministic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from gradwire.level import Level
from gradwire.types import Bucket, Decision, Footprint, LevelOption, StepFacts, View

# The footprints of a step's buckets at a level, one for each bucket.
FootprintOf = Callable[[Level, Sequence[Bucket]], Sequence[Footprint]]


class Sizes(NamedTuple):
    """What a level sends for a job: bytes in total and by bucket, and the latencies in a row of the last bucket."""

    wire_bytes: int
    each: NDArray[np.float64]
    last_hops: int


@dataclass(frozen=True)
class Job:
    """What seldom changes during training: world size, buckets, and what a level would send for each bucket of a step.

    A bucket may be sent with a later one; its own footprint is then empty. `sends` is the level that is sent in the
    place of one that a controller chooses, which its price is that of. `plan` is the version of the plan that the
    footprints belong to; 0 without a plan. Keep one Job as long as buckets and plan are the same, because it caches
    footprints: a model may have hundreds of buckets, a controller ten levels, and training many steps a second.
    """

    world_size: int
    buckets: tuple[Bucket, ...]
    footprint: FootprintOf
    plan: int = 0
    sends: Callable[[Level], Level] = lambda level: level

    @cached_property
    def numel(self) -> int:
        return sum(bucket.numel for bucket in self.buckets)

    @cached_property
    def numels(self) -> NDArray[np.float64]:
        """Elements of each bucket."""
        return np.array([bucket.numel for bucket in self.buckets], dtype=np.float64)

    def wire_bytes(self, level: Level) -> int:
        return self.sizes(level).wire_bytes

    def sizes(self, level: Level) -> Sizes:
        known = self._known.get(level)
        if known is None:
            known = self._known[level] = self._sizes(level)
        return known

    @cached_property
    def _known(self) -> dict[Level, Sizes]:
        return {}

    def _sizes(self, level: Level) -> Sizes:
        found = self.footprint(level, self.buckets)
        each = [one.wire_bytes for one in found]
        return Sizes(sum(each), np.array(each, dtype=np.float64), found[-1].hops if found else 0)


def alike(one: tuple[Bucket, ...], other: tuple[Bucket, ...]) -> bool:
    """Whether two steps have the same buckets."""
    return len(one) == len(other) and all(a.slices == b.slices for a, b in zip(one, other, strict=True))


def same_job(known: Job | None, job: Job) -> Job:
    """The known job with its cached sizes, as long as buckets and plan are the same; else the new one."""
    if known is None or known.plan != job.plan or not alike(known.buckets, job.buckets):
        return job
    return known


class Controller(Protocol):
    """Chooses one level for the whole job, again after every step.

    A class registered in the entry-point group `gradwire.controllers` is selected by its name as the level.
    """

    def decide(self, job: Job, view: View, facts: StepFacts, now: float) -> Decision:
        """`facts` are the last step's, merged over ranks, with rank 0's bucket times."""
        ...


@runtime_checkable
class OptionSource(Protocol):
    """A controller that says what it predicts of the levels that it may use."""

    def options(self) -> tuple[LevelOption, ...] | None:
        """As of the last decision, over what carried that step; None as long as that is not known."""
        ...


@runtime_checkable
class PriceSource(Protocol):
    """A controller that says how many times more steps a level needs."""

    def price(self, level: Level) -> float | None:
        """Sent between all ranks; None where that is not known or not permitted."""
        ...


def options_of(controller: Controller) -> tuple[LevelOption, ...] | None:
    """Empty for a controller that predicts nothing, None for one that does not know yet."""
    return controller.options() if isinstance(controller, OptionSource) else ()


def price_of(controller: Controller, level: Level) -> float | None:
    """None for a controller that does not know prices."""
    return controller.price(level) if isinstance(controller, PriceSource) else None
