"""The nouns that pass between the rooms. All frozen; nothing here computes, sends or decides.

Bucket -> View -> Decision -> Payload -> Plan -> Delivery -> Update
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gradwire.level import Level

__all__ = [
    "Bucket",
    "Decision",
    "Footprint",
    "Level",
    "LinkView",
    "ParameterSlice",
    "Plan",
    "StepFacts",
    "Tree",
    "View",
]


@dataclass(frozen=True, slots=True)
class ParameterSlice:
    """Where one parameter's gradient lies in a bucket's flat buffer, in elements."""

    name: str
    offset: int
    shape: tuple[int, ...]
    numel: int


@dataclass(frozen=True, slots=True)
class Bucket:
    """One flat stretch of gradient, ready to be synchronised at `step`."""

    index: int
    step: int
    numel: int
    itemsize: int
    slices: tuple[ParameterSlice, ...]
    is_last: bool

    @property
    def nbytes(self) -> int:
        return self.numel * self.itemsize


@dataclass(frozen=True, slots=True)
class LinkView:
    """What is known of one directed link (or of the group as a whole, where only collectives are seen).

    Seconds and bytes per second; None where nothing identifies the value yet. `bandwidth` is what the link delivers
    now, `best` the most it delivered lately, `overhead` what an exchange takes besides its bytes; `delay` is how long a
    step's synchronisation takes, `variation` by how much it varies, `queueing` what the latency exceeds its minimum by.
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


@dataclass(frozen=True, slots=True)
class Acks:
    """What acknowledgements say of all links of one rank together; None where they say nothing yet.

    `rtprop`, `queueing` and `loss` are its worst link's; `bandwidth` is what it delivered per second of moving bytes.
    """

    rtprop: float | None = None
    bandwidth: float | None = None
    queueing: float = 0.0
    loss: float = 0.0


@dataclass(frozen=True, slots=True)
class View:
    """What the network is like now: the group as one link, and each known directed pair (source, destination).

    `changes` counts how often it became another network: whoever remembers something of it forgets it when this grows.
    """

    group: LinkView
    links: dict[tuple[int, int], LinkView] = field(default_factory=dict)
    changes: int = 0

    @classmethod
    def unknown(cls) -> View:
        return cls(LinkView())


@dataclass(frozen=True, slots=True)
class StepFacts:
    """What one rank measured in one step. Seconds and bytes; the defaults mean "nothing was measured".

    `exposed` is how long training waited after its last gradient was ready; `busy` the time during which anything of
    ours was on the network; `hops` the latencies in a row of the longest exchange; `work` the time of encoding and
    decoding; `span` from the first bucket ready to the last; `buckets` each bucket's (ready after the first, bytes);
    `residual` the energy that waits relative to a fresh gradient's; `loss` what the user noted, if anything.
    `carrying` and `encoding` are the parts of `exposed` with something on the network, and with encoding alone;
    `level` is the one that the step ran at, where that is known.
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

    @property
    def compute(self) -> float:
        """What a step takes when nothing is waited for."""
        return max(0.0, self.seconds - self.exposed)


@dataclass(frozen=True, slots=True)
class Footprint:
    """What one exchange puts on the network: bytes sent by each rank, and latencies in a row."""

    wire_bytes: int
    hops: int


def all_reduce_bytes(nbytes: int, world_size: int) -> int:
    """What each of W ranks sends to sum so many bytes: 2 (W - 1) / W of them, by a ring or by shards."""
    return 2 * nbytes * (world_size - 1) // world_size


@dataclass(frozen=True, slots=True)
class Decision:
    """One level for one bucket, with the sentence that explains it and the version all ranks agreed on.

    `guarded` where accuracy and not time asked for it: known to the rank that decided.
    """

    level: Level
    reason: str
    version: int = 0
    guarded: bool = False


@dataclass(frozen=True, slots=True)
class Tree:
    """A rooted aggregation tree: `parents[m]` is where member m sends its sum; the root is its own parent.

    Sums flow up to the root. The result flows down the same edges, or, where `sources` is given, to each member m
    from `sources[m]` (again the root is its own): the two directions of a link are seldom equally fast.
    `share` is this tree's part of the gradient.
    """

    root: int
    parents: dict[int, int]
    share: float
    sources: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """How a sum travels: trees whose shares add up to one, and what the planner expects of it.

    `routes[(a, b)]` are the members that relay from a to b, ends included, for tree edges that are no direct link.
    `auxiliary[(a, b)]` are side routes of the same form, for edges whose own queue is long.
    `chunk` is the size in bytes (of dense gradient) that the prediction assumes is sent, summed and passed on at once.
    `level` is the level of its steps, where the plan decides that; "" leaves it to whoever hands in a bucket.
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
