"""Events: past-tense facts that one rank notes while training. Everything shown to a person comes from these.

`at` is the rank's monotonic clock in seconds. Sinks must not block: they are called from the training thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gradwire.flow import StepFacts, View


@dataclass(frozen=True, slots=True)
class Attached:
    """gradwire took over a model's gradient synchronisation."""

    at: float
    rank: int
    world_size: int
    parameters: int
    config: dict[str, object]


@dataclass(frozen=True, slots=True)
class Decided:
    """A bucket's level changed (or was set for the first time)."""

    at: float
    step: int
    bucket: int
    level: str
    reason: str
    version: int


@dataclass(frozen=True, slots=True)
class Synchronised:
    """A bucket's mean was restored: its size, what this rank sent for it, the time from ready to restored."""

    at: float
    step: int
    bucket: int
    level: str
    nbytes: int
    wire_bytes: int
    sent: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Sensed:
    """What the network is like, and what the last step was like, as rank 0 knows it. Seconds and bytes per second."""

    at: float
    step: int
    rtprop: float | None
    bandwidth: float | None
    queueing: float
    delay: float
    variation: float
    seconds: float
    exposed: float
    compute: float
    work: float
    residual: float

    @classmethod
    def of(cls, at: float, step: int, view: View, facts: StepFacts) -> Sensed:
        link = view.group
        network = (link.rtprop, link.bandwidth, link.queueing, link.delay, link.variation)
        return cls(at, step, *network, facts.seconds, facts.exposed, facts.compute, facts.work, facts.residual)


@dataclass(frozen=True, slots=True)
class NonFinite:
    """This rank's gradient held NaN or infinity; it was passed on and kept out of the residuals."""

    at: float
    step: int
    bucket: int
    elements: int


@dataclass(frozen=True, slots=True)
class Failed:
    """Synchronisation failed; the training loop gets the same message as an exception."""

    at: float
    step: int
    error: str


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan was made, proposed or came into force: its version, planner, predicted seconds, and why."""

    at: float
    version: int
    planner: str
    predicted: float
    reason: str


Event = Planned | Attached | Decided | Sensed | Synchronised | NonFinite | Failed


class Sink(Protocol):
    """Takes events; returns at once."""

    def emit(self, event: Event) -> None: ...
