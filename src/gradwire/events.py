"""Events: facts that one rank emits during training. Every view (terminal, dashboard, report) is made from them.

`at` is the rank's monotonic clock in seconds; `Opened` relates it to the wall clock. Sinks must not block: the training
thread and gradwire's threads call them. The recorded form (JSON lines) is described in docs/events.md.

The schema has one number, VERSION. A new event or a new field with a default keeps it; a change that a reader of the
old schema would misread raises it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec

from gradwire.types import LinkView, Plan, StepFacts, View, all_reduce_bytes

FORMAT: Final = "gradwire-events"
VERSION: Final = 1


def _tag(name: str) -> str:
    """NonFinite -> non_finite."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


class Fact(msgspec.Struct, frozen=True, gc=False, tag=_tag, tag_field="event", omit_defaults=True):
    """Base class of all events."""

    at: float


class Opened(Fact, frozen=True):
    """First line of every file: format, rank, and the wall clock (Unix seconds) at `at`."""

    format: str
    version: int
    rank: int
    world_size: int
    wall: float
    run: str = ""
    segment: int = 0


class Attached(Fact, frozen=True):
    """gradwire was attached to a model; the effective configuration."""

    rank: int
    world_size: int
    parameters: int
    config: dict[str, Any]
    host: str = ""
    site: str = ""
    gradwire: str = ""
    torch: str = ""


class Stepped(Fact, frozen=True):
    """One step on this rank. `compute + encode + wire + wait` is `seconds`; all four are 0 where only that is known.

    `compute` is the time without waiting. In the rest of the step training waited: `encode` while this rank encoded or
    decoded and had no operation on the network, `wire` while it had one, `wait` for late ranks (where pulses measure
    them) and for everything else. `work` and `busy` are all of the encoding and all of the time on the network,
    overlapped with compute or not. `gradient_bytes` is the uncompressed gradient, `wire_bytes` what this rank sent for
    it, `plain_bytes` what plain DDP would have sent. `residual` is the residual's energy relative to the gradient's,
    None where there is no residual.
    """

    step: int
    seconds: float
    compute: float
    encode: float
    wire: float
    wait: float
    gradient_bytes: int
    wire_bytes: int
    plain_bytes: int
    level: str = "off"
    work: float = 0.0
    busy: float = 0.0
    residual: float | None = None

    @classmethod
    def of(cls, at: float, step: int, facts: StepFacts, level: str, world_size: int, late: float = 0.0) -> Stepped:
        """`late` is how much later than this rank the last one had its gradient ready."""
        gradient = sum(nbytes for _, nbytes in facts.buckets)
        late = min(late, facts.carrying)
        wire = facts.carrying - late
        wait = max(0.0, facts.exposed - facts.carrying - facts.encoding) + late
        plain = all_reduce_bytes(gradient, world_size)
        return cls(
            at=at,
            step=step,
            seconds=facts.seconds,
            compute=facts.seconds - facts.encoding - wire - wait,
            encode=facts.encoding,
            wire=wire,
            wait=wait,
            gradient_bytes=gradient,
            wire_bytes=facts.wire_bytes,
            plain_bytes=plain,
            level=level,
            work=facts.work,
            busy=facts.busy,
            residual=None if level == "off" else finite(facts.residual),
        )


class Decided(Fact, frozen=True):
    """A bucket's level, or the number of local steps that gradwire chooses, changed (or was set for the first time)."""

    step: int
    bucket: int
    level: str
    reason: str
    version: int
    sync_every: int = 1


class Synchronised(Fact, frozen=True):
    """A bucket's mean was restored: its size, what this rank sent for it, the time from ready to restored.

    Several a step: counted live, recorded only with `observe.detail = "buckets"`.
    """

    step: int
    bucket: int
    level: str
    nbytes: int
    wire_bytes: int
    sent: int
    seconds: float


class OuterStepped(Fact, frozen=True):
    """With local steps: the outer optimizer stepped the global weights, or one fragment of them.

    Before it this rank made `local_steps` steps of its own; `reason` says why they ended. `own_norm` is the norm of
    this rank's pseudo-gradient (what it moved), `norm` a typical rank's (root mean square), `alignment` the mean cosine
    between the pseudo-gradients of two ranks: 1 if all ranks moved the same way, 0 if their ways are unrelated; None
    where that is not known. `outer_norm` is the norm of the change of the global weights. `waited` is how many seconds
    training waited for the exchange. `fragment` is None for all of the weights. `delay` is how many local steps after
    sending the result was applied.

    Where a round has `sync_seconds` instead of `sync_every` steps, `rank_steps` are the steps of every rank, `weight`
    is this rank's part in the mean (1 is all of it), and `rank_wait` is how many seconds this rank stood still for
    slower ones.

    With a plan, `ranks` are those whose steps are in the mean: not a rank that was lost in the round, nor one that
    joined at its end.
    """

    step: int
    local_steps: int
    sync_every: int
    reason: str
    own_norm: float | None
    norm: float | None
    alignment: float | None
    outer_norm: float | None
    waited: float
    fragment: int | None = None
    fragments: int = 1
    delay: int = 0
    sync_seconds: float = 0.0
    weight: float | None = None
    rank_steps: tuple[int, ...] = ()
    rank_wait: float = 0.0
    ranks: tuple[int, ...] = ()


class Sensed(Fact, frozen=True):
    """The estimate of the network for the group, and the last step, as rank 0 knows them.

    Seconds and bytes per second. `predicted_plain` is the cost model's prediction for a step of plain DDP now. `floor`
    is what the network carries at least; `restart` is what TCP's slow start after idle costs.
    """

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
    best: float | None = None
    loss: float = 0.0
    confidence: float = 0.0
    predicted_plain: float | None = None
    floor: float = 0.0
    restart: float = 0.0

    @classmethod
    def of(cls, at: float, step: int, view: View, facts: StepFacts, predicted_plain: float | None = None) -> Sensed:
        link = view.group
        network = (link.rtprop, link.bandwidth, link.queueing, link.delay, link.variation)
        work = (facts.seconds, facts.exposed, facts.compute, facts.work, finite(facts.residual) or 0.0)
        known = (link.best, link.loss, link.confidence, finite(predicted_plain))
        return cls(at, step, *network, *work, *known, link.floor, link.restart)


class LinkSample(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One directed link as its source knows it; None where a value is not measured. Seconds, bytes per second.

    `loss` is a share of packets, `window` the bytes that may be in flight, `age` the age of the estimate.
    """

    source: int
    destination: int
    rate: float | None = None
    rtt: float | None = None
    rtprop: float | None = None
    loss: float | None = None
    queueing: float | None = None
    window: int | None = None
    age: float = 0.0

    @classmethod
    def of(cls, source: int, destination: int, view: LinkView) -> LinkSample:
        trip = None if view.rtprop is None else view.rtprop + view.queueing
        return cls(source, destination, view.bandwidth, trip, view.rtprop, view.loss, view.queueing, None, view.age)


class LinksSensed(Fact, frozen=True):
    """This rank's links to its peers; at most once a second."""

    step: int
    links: tuple[LinkSample, ...]


class PlannedTree(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A tree of a plan: member m sends its sum to `parents[m]` and receives the result from `sources[m]`."""

    root: int
    share: float
    parents: dict[int, int]
    sources: dict[int, int] = {}


class PlannedRoute(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A path of members; those between the ends relay. `side`: it is used in addition to the direct link."""

    path: tuple[int, ...]
    side: bool = False


class Planned(Fact, frozen=True):
    """A plan is used from `step` on; `predicted` is the planner's seconds for one synchronisation."""

    step: int
    version: int
    planner: str
    reason: str
    predicted: float
    trees: tuple[PlannedTree, ...]
    routes: tuple[PlannedRoute, ...] = ()
    chunk: int = 0

    @classmethod
    def of(cls, at: float, step: int, plan: Plan, ranks: Sequence[int] | None = None) -> Planned:
        """`ranks[m]` is the job's rank of member m, where they differ."""
        rank = (lambda member: member) if ranks is None else ranks.__getitem__

        def renamed(edges: Mapping[int, int]) -> dict[int, int]:
            return {rank(member): rank(other) for member, other in edges.items()}

        trees = tuple(PlannedTree(rank(t.root), t.share, renamed(t.parents), renamed(t.sources)) for t in plan.trees)
        relays = [PlannedRoute(tuple(map(rank, path))) for path in plan.routes.values()]
        sides = [PlannedRoute(tuple(map(rank, path)), side=True) for paths in plan.auxiliary.values() for path in paths]
        return cls(
            at, step, plan.version, plan.planner, plan.reason, plan.predicted, trees, (*relays, *sides), plan.chunk
        )


class Transferred(Fact, frozen=True):
    """What this rank and one peer exchanged since the last such event; `step` is the last step that it covers.

    Received from the peer: `transfers` with `nbytes`, in `seconds` summed over transfers; `missing` bytes were not
    waited for; `closes` counts how transfers ended ("complete", "threshold", "deadline", "refused", "cancelled"). Sent
    to the peer: `returned` bytes were not delivered and returned to this rank's residual, `retransmitted` bytes were
    sent again. `peer` is -1 for collectives of which only the total is known.
    """

    step: int
    peer: int
    transfers: int
    nbytes: int
    missing: int
    returned: int
    seconds: float
    closes: dict[str, int]
    retransmitted: int = 0


class Noted(Fact, frozen=True):
    """What the user reported: loss, accuracy, epoch, the planned number of steps, other values.

    `nonfinite` names the values that were NaN or infinite, which JSON does not have.
    """

    step: int
    loss: float | None = None
    accuracy: float | None = None
    epoch: float | None = None
    total_steps: int | None = None
    values: dict[str, float] = {}
    nonfinite: tuple[str, ...] = ()


class Advised(Fact, frozen=True):
    """Another `bucket_cap_mb` of DDP is predicted to save `gain`, a share of a step."""

    step: int
    bucket_cap_mb: int
    gain: float


class Priced(Fact, frozen=True):
    """What the level in use costs: how many times the steps of uncompressed training it needs for the same loss.

    `predicted` from the gradient, `used` for decisions, and `realised` as the losses that the user noted show it, with
    the bounds of nine in ten; None where they do not show it yet. `notes` are the losses noted so far.
    """

    step: int
    level: str
    predicted: float
    used: float
    realised: float | None = None
    low: float | None = None
    high: float | None = None
    notes: int = 0


class TransportChosen(Fact, frozen=True):
    """Where the configuration leaves the transport or the plan open: what carries the coming steps ("group", "tcp",
    "ltp" or "trees"), and why; also when another one is being opened or measured."""

    step: int
    transport: str
    reason: str


class NonFinite(Fact, frozen=True):
    """This rank's gradient had NaN or infinity; they were sent, and kept out of the residuals."""

    step: int
    bucket: int
    elements: int


class Faulted(Fact, frozen=True):
    """A failure that training survived; `detail` is a sentence, `kind` is one of:

    "fallback" (another transport is used than configured), "guard" (compression seemed to harm accuracy and was
    reduced), "peer_lost" (the others continue without it), "peer_back" (it rejoined), "late_rank" (the others waited
    for a rank for a step or longer).
    """

    step: int
    kind: str
    detail: str
    peer: int | None = None


class Failed(Fact, frozen=True):
    """Synchronisation failed; the training loop gets the same message as an exception."""

    step: int
    error: str


class Warned(Fact, frozen=True):
    """gradwire could not do something that training does not need, such as writing this file."""

    message: str


class Dropped(Fact, frozen=True):
    """`count` events were not recorded because the writer could not keep up."""

    count: int


class Ended(Fact, frozen=True):
    """The session was closed normally."""

    step: int


Event = (
    Opened
    | Attached
    | Stepped
    | Decided
    | Synchronised
    | OuterStepped
    | Sensed
    | LinksSensed
    | Planned
    | Transferred
    | Noted
    | Advised
    | Priced
    | TransportChosen
    | NonFinite
    | Faulted
    | Failed
    | Warned
    | Dropped
    | Ended
)


class Sink(Protocol):
    """Receives events; must not block."""

    def emit(self, event: Event) -> None: ...


def finite(value: float | None) -> float | None:
    """The value, or None for NaN and infinity, which JSON does not have."""
    return value if value is not None and math.isfinite(value) else None
