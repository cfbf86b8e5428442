"""Answers: what the dashboard's interface returns, one struct per address. The OpenAPI document is made from these.

Times are seconds since the run began, sizes bytes, rates bytes per second. None is "not known".
"""

from __future__ import annotations

from typing import Any

import msgspec

from gradwire.observe.run_status import Status


class Response(msgspec.Struct, frozen=True, gc=False):
    """What all answers have in common."""


class RunBrief(Response, frozen=True):
    """One run in the list. `changed` grows whenever anything of the run changed."""

    id: str
    name: str
    started: float | None
    duration: float
    world_size: int
    ranks: list[int]
    steps: int
    live: bool
    status: Status
    level: str
    changed: int


class Runs(Response, frozen=True):
    """Every run the server was given, the newest first; `left_out` older ones are not shown."""

    version: str
    runs: list[RunBrief]
    left_out: int


class NetworkNow(Response, frozen=True):
    """The network as rank 0 saw it last."""

    bandwidth: float | None
    rtprop: float | None
    queueing: float
    loss: float
    confidence: float


class StepSplitView(Response, frozen=True):
    """Seconds of a step by what they went to, as a mean over ranks and over the last steps. The parts add up to the
    seconds; all are 0 where only the whole step was recorded."""

    seconds: float
    compute: float
    encode: float
    wire: float
    wait: float


class NoteNow(Response, frozen=True):
    """What the script noted: the last value of each kind."""

    at: float
    step: int
    loss: float | None
    accuracy: float | None
    epoch: float | None
    total_steps: int | None


class DecisionMade(Response, frozen=True):
    """A level that was set, and why."""

    at: float
    step: int
    level: str
    reason: str
    version: int


class Overview(Response, frozen=True):
    """The run at a glance. `speedup` is predicted by the cost model: `predicted_plain` divided by the split's seconds.
    `step_mean` is the mean step of the whole run: two runs' ratio is the measured speed-up, as in reports."""

    run: RunBrief
    parameters: int
    steps_per_second: float | None
    split: StepSplitView | None
    predicted_plain: float | None
    speedup: float | None
    step_mean: float | None
    gradient_bytes: int
    wire_bytes: int
    plain_bytes: int
    network: NetworkNow | None
    recent: list[DecisionMade]
    note: NoteNow | None
    seconds_left: float | None
    faults: int


class SeriesName(Response, frozen=True):
    """A series that can be asked for; `rank` where it is one rank's."""

    name: str
    unit: str
    rank: int | None
    points: int


class Catalogue(Response, frozen=True):
    """All series of a run."""

    series: list[SeriesName]


class SeriesView(Response, frozen=True):
    """Buckets of a series: the first of all its parallel lists begins at `at[0]`."""

    name: str
    unit: str
    at: list[float]
    low: list[float]
    high: list[float]
    mean: list[float]


class SeriesData(Response, frozen=True):
    """Series between two times."""

    start: float
    end: float
    series: list[SeriesView]


class Decisions(Response, frozen=True):
    """Decisions between two times, oldest first; `left_out` were too many or too old to keep."""

    decisions: list[DecisionMade]
    left_out: int


class TreeShown(Response, frozen=True):
    """A tree of a plan; edges are (from, to), up with sums and down with results."""

    root: int
    share: float
    up: list[tuple[int, int]]
    down: list[tuple[int, int]]


class RouteShown(Response, frozen=True):
    """Members a message passes, ends included; `side` beside the direct link."""

    path: list[int]
    side: bool


class PlanShown(Response, frozen=True):
    """A plan and when it came into force."""

    at: float
    step: int
    version: int
    planner: str
    reason: str
    predicted: float
    trees: list[TreeShown]
    routes: list[RouteShown]


class MemberView(Response, frozen=True):
    """A rank and where it runs; degrees north and east where the site's or the host's name is that of a place."""

    rank: int
    host: str
    site: str
    latitude: float | None = None
    longitude: float | None = None


class Topology(Response, frozen=True):
    """Who takes part, and every plan kept, oldest first."""

    members: list[MemberView]
    plans: list[PlanShown]


class LinkNow(Response, frozen=True):
    """A directed link as its source knew it last. `load` is what gradwire sends over it, in bytes per second."""

    source: int
    destination: int
    rate: float | None
    rtt: float | None
    rtprop: float | None
    loss: float | None
    queueing: float | None
    window: int | None
    age: float
    load: float | None


class Links(Response, frozen=True):
    """Every link known."""

    members: list[MemberView]
    links: list[LinkNow]


class PairTransport(Response, frozen=True):
    """All transfers from `source` to `destination` so far."""

    source: int
    destination: int
    transfers: int
    nbytes: int
    missing: int
    returned: int
    retransmitted: int
    seconds: float
    closes: dict[str, int]


class TransportView(Response, frozen=True):
    """gradwire's own transport: totals, and each pair."""

    transfers: int
    nbytes: int
    missing: int
    returned: int
    retransmitted: int
    closes: dict[str, int]
    pairs: list[PairTransport]


class FaultSeen(Response, frozen=True):
    """Something that went wrong; kind "recording" is about the files, and no rank's."""

    at: float
    rank: int | None
    step: int | None
    kind: str
    detail: str
    # All ranks that told of it, where several did.
    ranks: list[int] = []


class Faults(Response, frozen=True):
    """Faults, newest first; `left_out` were too many to keep."""

    faults: list[FaultSeen]
    left_out: int


class RankSetting(Response, frozen=True):
    """A setting in which a rank differs from rank 0."""

    rank: int
    setting: str
    value: str


class Configuration(Response, frozen=True):
    """The effective configuration of the lowest rank, and where others differ."""

    config: dict[str, Any]
    gradwire: str
    torch: str
    members: list[MemberView]
    differing: list[RankSetting]


class Refusal(Response, frozen=True):
    """Why a request was not answered."""

    error: str


class RunsChanged(Response, frozen=True):
    """Sent over the live stream when something changed."""

    runs: list[RunBrief]
