"""Types that the stages exchange; all frozen, without I/O.

gradient    ParameterSlice, Bucket, Energies
network     LinkView, Acks, LinkFacts, View         what sense knows
step        StepFacts, RoundNorms                   what one rank measured
decision    Footprint, Decision                     what a level would send; which level is used, over what
            LevelOption, RouteForecast              what a level, or another way to sum, is predicted to take
            Slowdown                                what a level costs in steps
plan        Tree, Plan                              how sums travel between members
function    all_reduce_bytes                        bytes that each rank sends for an uncompressed sum
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from gradwire.level import Level

# What carries gradients: the collectives of the model's process group, a wire of gradwire's own between all ranks, or
# the trees of a plan.
TransportKind = Literal["group", "tcp", "ltp", "trees"]
FLAT_TRANSPORTS: Final[tuple[TransportKind, ...]] = ("group", "tcp", "ltp")
TRANSPORTS: Final[tuple[TransportKind, ...]] = (*FLAT_TRANSPORTS, "trees")


@dataclass(frozen=True, slots=True)
class ParameterSlice:
    """Position of one parameter's gradient in a bucket's flat buffer, in elements."""

    name: str
    offset: int
    shape: tuple[int, ...]
    numel: int


@dataclass(frozen=True, slots=True)
class Bucket:
    """A flat part of the gradient that is synchronised at once, at `step`. A step has the buckets from `first` to the
    one that `is_last`."""

    index: int
    step: int
    numel: int
    itemsize: int
    slices: tuple[ParameterSlice, ...]
    is_last: bool
    first: int = 0

    @property
    def nbytes(self) -> int:
        return self.numel * self.itemsize


@dataclass(frozen=True, slots=True)
class Energies:
    """What the bytes of a buffer are worth: values[i] is the energy (sum of squares, up to a common factor) of `span`
    bytes, those from offset + i x span on."""

    offset: int
    span: int
    values: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class LinkView:
    """Estimates of one directed link (or of the whole group, where only collectives are measured).

    Seconds and bytes per second; None where a value is not measured yet. `bandwidth` is the present delivery rate,
    `best` the highest recent one, `overhead` the time of an exchange besides its bytes; `delay` is the time of a step's
    synchronisation, `variation` its deviation, `queueing` the latency above its minimum.

    `bandwidth` is None, or keeps its last value, where nothing identifies it. `floor` is what the path carries at
    least: samples of a sender that had no more to send are lower bounds and count here only. `restart` is how much
    longer a transfer of the path's bandwidth-delay product takes because TCP restarts from its initial window after the
    idle time between steps; 0 where it does not.
    """

    rtprop: float | None = None
    bandwidth: float | None = None
    best: float | None = None
    overhead: float = 0.0
    queueing: float = 0.0
    delay: float = 0.0
    variation: float = 0.0
    loss: float = 0.0
    age: float = 0.0
    confidence: float = 0.0
    floor: float = 0.0
    restart: float = 0.0


@dataclass(frozen=True, slots=True)
class Acks:
    """Summary of the acknowledgements on all links of one rank; None where a value is not measured yet.

    `rtprop`, `queueing`, `loss` and `restart` (as in LinkView) are those of the worst link. `bandwidth` is what the
    links carry together, None unless the network and not the sender limited them; `floor` is what they carried, 0 in a
    step that moved too little to measure it.
    """

    rtprop: float | None = None
    bandwidth: float | None = None
    queueing: float = 0.0
    loss: float = 0.0
    floor: float = 0.0
    restart: float = 0.0


@dataclass(frozen=True, slots=True)
class LinkFacts:
    """What one rank knows of its link to `peer`; -1: to none. Seconds and bytes per second, 0 where unknown.

    `rate` is what the path carried while it was the limit, `floor` what it carries at least. `together` is the most
    that the rank was seen to send to all others at the same time.
    """

    peer: int = -1
    rtprop: float = 0.0
    rate: float = 0.0
    floor: float = 0.0
    together: float = 0.0


@dataclass(frozen=True, slots=True)
class View:
    """The present estimate of the network: the group as one link, and each known directed pair (source, destination).

    `changes` counts network changes: what was measured before the last one is obsolete.
    """

    group: LinkView
    links: dict[tuple[int, int], LinkView] = field(default_factory=dict)
    changes: int = 0

    @classmethod
    def unknown(cls) -> View:
        return cls(LinkView())


@dataclass(frozen=True, slots=True)
class RoundNorms:
    """How far ranks went in a round of local steps: squared norms of a rank's own change of the weights (on rank 0, the
    mean over ranks) and of the mean of all ranks' changes, after so many steps."""

    steps: int
    own: float
    shared: float


@dataclass(frozen=True, slots=True)
class StepFacts:
    """What one rank measured in one step. Seconds and bytes; the defaults mean "not measured".

    `exposed` is how long training waited after its last gradient was ready; `busy` the time with at least one operation
    on the network; `hops` the latencies in a row of the longest exchange; `work` the time of encoding and decoding;
    `span` from the first bucket ready to the last; `buckets` each bucket's (ready after the first, bytes); `residual`
    the residual's energy relative to the gradient's; `loss` the training loss, if the user reported it. `carrying` and
    `encoding` are the parts of `exposed` with an operation on the network, and with encoding only; `level` is the level
    of the step, where known. `slack` is for how long training went on after its last gradient was ready and before it
    needed the result (local steps with a delay); `exposed` begins after it. On rank 0, `sample` has some elements of
    its own gradient, `adaptive` says whether the optimizer divides by the root of squared gradients, and `rate` is its
    learning rate, where they are known. With local steps a step of the session is a round: `steps` are the optimizer's
    steps in `compute`, `divergence` is that of the exchange.
    """

    seconds: float = 0.0
    exposed: float = 0.0
    busy: float = 0.0
    wire_bytes: int = 0
    hops: int = 0
    work: float = 0.0
    span: float = 0.0
    buckets: tuple[tuple[float, int], ...] = ()
    residual: float = 0.0
    loss: float = 0.0
    carrying: float = 0.0
    encoding: float = 0.0
    level: Level | None = None
    slack: float = 0.0
    sample: NDArray[np.float32] | None = field(default=None, compare=False, repr=False)
    adaptive: bool | None = None
    rate: float | None = None
    steps: int = 1
    divergence: RoundNorms | None = None

    @property
    def compute(self) -> float:
        """The step's time without waiting for the network."""
        return max(0.0, self.seconds - self.exposed)


@dataclass(frozen=True, slots=True)
class Footprint:
    """The network cost of one exchange: bytes sent by each rank, and latencies in a row."""

    wire_bytes: int
    hops: int


def all_reduce_bytes(nbytes: int, world_size: int) -> int:
    """Bytes that each of W ranks sends to sum a buffer, with a ring or with shards: 2 (W - 1) / W of its size."""
    return 2 * nbytes * (world_size - 1) // world_size


@dataclass(frozen=True, slots=True)
class Slowdown:
    """How many times the steps of uncompressed training a level needs for the same loss: as predicted, as `used` for
    decisions, and as the user's `notes` of the loss show it, between two bounds; None where they do not show it yet."""

    level: Level
    predicted: float
    used: float
    realised: float | None = None
    low: float | None = None
    high: float | None = None
    notes: int = 0


@dataclass(frozen=True, slots=True)
class Decision:
    """The level of all buckets, the reason in one sentence, and a version that all ranks agree on.

    `guarded`: the accuracy guard decided, not time; known only to the rank that decided. `sync_every` counts where the
    user allows local steps and leaves their number to the controller: 1 synchronises gradients at every step.
    `transport` carries the step, where the configuration leaves that open; `prepare` is one that ranks open meanwhile,
    in the background, "group" for none. `delay`: while this decision is in force, ranks change to the one that was made
    so many steps before (decide/decision_timing.py); the governor sets it, not the controller.
    `slowdown` is that of the level that the last step ran at; like `guarded` it is known only to the rank that decided.
    """

    level: Level
    reason: str
    version: int = 0
    guarded: bool = False
    sync_every: int = 1
    transport: TransportKind = "group"
    prepare: TransportKind = "group"
    delay: int = 2
    slowdown: Slowdown | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class LevelOption:
    """What a controller knows of a level that it may use: the predicted seconds of a step, of which `exposed` waits for
    the network, and how many times more steps the level needs for the same loss. `now`: it may be used at this step;
    others only after the warm-up. `summed`: that number for what trees
    send in its place; None where that is not permitted. `known`: these numbers are this job's, else they wait for its
    gradients."""

    level: Level
    seconds: float
    exposed: float
    price: float = 1.0
    now: bool = True
    summed: float | None = 1.0
    known: bool = True


@dataclass(frozen=True, slots=True)
class RouteForecast:
    """Predicted seconds of a step's exchange at the present level as it is summed now, and along trees where those are
    clearly better (else None); the reason in words. `by_level` has the seconds along trees of every level that may be
    used, by the level that trees would send; `work` the seconds of members' processors that add to them."""

    flat: float
    trees: float | None
    reason: str
    by_level: Mapping[Level, float] = field(default_factory=dict)
    work: Mapping[Level, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Readiness:
    """Of one rank: the transport that it prepared last ("group": none), and whether it is open or failed."""

    kind: TransportKind = "group"
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Tree:
    """A rooted aggregation tree: `parents[m]` is where member m sends its sum; the root is its own parent.

    Sums flow up to the root. The result flows down the same edges, or, where `sources` is given, to each member m
    from `sources[m]` (the root is its own source): the two directions of a link are seldom equally fast.
    `share` is the part of the gradient that uses this tree.
    """

    root: int
    parents: dict[int, int]
    share: float
    sources: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """How sums travel between members: trees whose shares add up to one, with the predicted seconds and the reason.

    `routes[(a, b)]` are the members that relay from a to b, ends included, for tree edges without a direct link.
    `auxiliary[(a, b)]` are side routes of the same form, for edges whose own queue is long.
    `chunk` is the size in bytes (of dense gradient) of the pieces that the prediction assumes.
    `level` is the level of its steps, where the plan decides it; "" leaves it to the sender of a bucket.
    """

    version: int
    planner: str
    trees: tuple[Tree, ...]
    predicted: float
    reason: str
    auxiliary: dict[tuple[int, int], tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    routes: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)
    chunk: int = 0
    level: str = ""
