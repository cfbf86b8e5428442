"""Schema: the responses of the dashboard's API, one struct per path. The OpenAPI document is made from them.

Times are seconds since the run began, sizes are bytes, rates are bytes per second. None means "not known".
"""

from __future__ import annotations

from typing import Any

import msgspec

from gradwire.observe.run_status import Status


class Response(msgspec.Struct, frozen=True, gc=False):
    """Base of all responses."""


class RunBrief(Response, frozen=True):
    """One run in the list. `changed` increases with every change of the run."""

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
    """Every run of the server, newest first; `left_out` older ones are not shown."""

    version: str
    runs: list[RunBrief]
    left_out: int


class NetworkNow(Response, frozen=True):
    """Rank 0's last estimate of the network."""

    bandwidth: float | None
    rtprop: float | None
    queueing: float
    loss: float
    confidence: float


class StepSplitView(Response, frozen=True):
    """Parts of a step in seconds, as a mean over ranks and over the last steps. They add up to `seconds`; all are 0 if
    only the whole step was recorded."""

    seconds: float
    compute: float
    encode: float
    wire: float
    wait: float


class NoteNow(Response, frozen=True):
    """The last noted value of each kind."""

    at: float
    step: int
    loss: float | None
    accuracy: float | None
    epoch: float | None
    total_steps: int | None


class DecisionMade(Response, frozen=True):
    """A chosen level and its reason."""

    at: float
    step: int
    level: str
    reason: str
    version: int


class GuardView(Response, frozen=True):
    """How often the accuracy guard reduced compression, and the last time."""

    count: int
    step: int
    headline: str
    detail: str


class LocalStepsView(Response, frozen=True):
    """Local steps: outer steps so far and the last of them. `alignment` is the mean cosine between the pseudo-gradients
    of two ranks, `waited` the seconds that training waited for all exchanges."""

    outer_steps: int
    sync_every: int
    fragments: int
    delay: int
    alignment: float | None
    norm: float | None
    outer_norm: float | None
    waited: float
    headline: str


class ChosenTransportView(Response, frozen=True):
    """What carries the gradients, where the job chooses it: "group", "tcp", "ltp" or "trees"; since which step, and
    why."""

    transport: str
    step: int
    reason: str


class VerdictView(Response, frozen=True):
    """The verdict, as in reports: `tone` is "good" (faster), "even", "bad" (failed, ruined, slower, less accurate) or
    "open" (not known). With `with`, the run is compared with that one."""

    tone: str
    headline: str
    warning: str
    time: str
    changed: str
    next: list[str]


class Overview(Response, frozen=True):
    """Main numbers of a run. `speedup` is predicted by the cost model: `predicted_plain` divided by `split.seconds`.
    `step_mean` is the mean step of the whole run: the ratio of two runs is the measured speed-up, as in reports."""

    run: RunBrief
    verdict: VerdictView
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
    # None if the accuracy guard never acted.
    guard: GuardView | None
    # None without local steps.
    local_steps: LocalStepsView | None = None
    # None where the configuration fixes it, or as long as nothing was chosen.
    carried: ChosenTransportView | None = None


class SeriesName(Response, frozen=True):
    """A series that can be requested; `rank` if it belongs to one rank."""

    name: str
    unit: str
    rank: int | None
    points: int


class Catalogue(Response, frozen=True):
    """All series of a run."""

    series: list[SeriesName]


class SeriesView(Response, frozen=True):
    """A series in intervals, as parallel lists: interval i begins at `at[i]`."""

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
    """A tree of a plan; edges are (from, to): `up` for sums, `down` for results."""

    root: int
    share: float
    up: list[tuple[int, int]]
    down: list[tuple[int, int]]


class RouteShown(Response, frozen=True):
    """The members on a route, both ends included; `side` if it is used in addition to the direct link."""

    path: list[int]
    side: bool


class PlanShown(Response, frozen=True):
    """A plan and the time of its first use."""

    at: float
    step: int
    version: int
    planner: str
    reason: str
    predicted: float
    trees: list[TreeShown]
    routes: list[RouteShown]


class MemberView(Response, frozen=True):
    """A rank, its host and site (named, or measured where none is); degrees north and east if the name of the site or
    host is a known place."""

    rank: int
    host: str
    site: str
    latitude: float | None = None
    longitude: float | None = None


class Topology(Response, frozen=True):
    """Members, and the plans that were kept, oldest first."""

    members: list[MemberView]
    plans: list[PlanShown]


class LinkNow(Response, frozen=True):
    """A directed link as last measured by its source. `load` is what gradwire sends over it, in bytes per second."""

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
    """All known links."""

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
    """gradwire's own transport: totals and pairs."""

    transfers: int
    nbytes: int
    missing: int
    returned: int
    retransmitted: int
    closes: dict[str, int]
    pairs: list[PairTransport]


class FaultSeen(Response, frozen=True):
    """A fault, failure or warning; kind "recording" is about the files and has no rank."""

    at: float
    rank: int | None
    step: int | None
    kind: str
    detail: str
    # All ranks that reported it, if there are several.
    ranks: list[int] = []


class Faults(Response, frozen=True):
    """Faults, newest first; `left_out` were too many to keep."""

    faults: list[FaultSeen]
    left_out: int


class RankSetting(Response, frozen=True):
    """A setting in which a rank differs from the lowest rank."""

    rank: int
    setting: str
    value: str


class Configuration(Response, frozen=True):
    """The effective configuration of the lowest rank, and the differences of the others."""

    config: dict[str, Any]
    gradwire: str
    torch: str
    members: list[MemberView]
    differing: list[RankSetting]


class Refusal(Response, frozen=True):
    """The reason why a request was refused."""

    error: str


class RunsChanged(Response, frozen=True):
    """Sent over the live stream when a run changed."""

    runs: list[RunBrief]
