"""Transport choice: whether another transport would shorten this job's steps, predicted first and then measured. Pure.

    1. predict: over the process group every transfer is met by a round trip of its own, over a wire of gradwire's the
       bytes leave at once; and where loss and not the link limits TCP, LTP is not limited. What trees would save is a
       forecast from the measured links (`RouteForecast`). Steps that hide their exchange behind compute have nothing to
       gain
    2. prepare: if the predicted gain is clear, all ranks open that transport in the background. Where one of them
       cannot, the job stays where it is and does not ask for it again
    3. try: some steps over it, at the same level; the controller waits meanwhile
    4. keep it if its steps are clearly shorter than those before; else return, and try again late: each time after
       twice as many steps. A step that takes far longer ends the trial at once
    5. after a network change, steps that have become longer are tried over the first transport again; where loss limits
       gradwire's TCP, LTP is tried

The level stays the same during a trial, so that both transports are compared at the same work; trees use the nearest
level that they can sum.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final

from gradwire.decide.summable_controller import summable
from gradwire.level import Level
from gradwire.types import RouteForecast, StepFacts, TransportKind, View
from gradwire.units import Seconds

# The predicted gain, as a share of a step, from which another transport is opened, and the measured one that keeps it.
WORTH: Final = 0.1
KEEPS: Final = 0.05
# Steps at one level that a comparison needs on each side; a trial ends undecided after MOST, and its first ones, in
# which windows open, do not count.
ENOUGH: Final = 8
MOST: Final = 24
OPENING: Final = 3
# Steps for which the first choice waits for the forecast of trees: a trial of something else would take longer.
PATIENCE: Final = 24
# A trial's step of so many times the usual one ends it.
FAR_LONGER: Final = 3.0
# Steps before a transport that was not kept is tried again; doubled each time.
RETRY: Final = 500
# After a network change, steps longer than before by this factor are tried over the group again.
SLOWER: Final = 1.3
# TCP's rate under loss p is about 1.22 segments / (round trip x sqrt(p)) for each connection (Mathis et al.); a rate up
# to this factor above it is taken for limited by loss. LTP is then expected to halve the time of the bytes.
SEGMENT: Final = 1448.0
MATHIS: Final = 1.22
NEAR: Final = 2.0
LEAST_LOSS: Final = 1e-5

# Latencies in a row of a step's exchange over a transport, at the present level.
HopsOver = Callable[[TransportKind], int]


@dataclass(frozen=True, slots=True)
class TransportChoice:
    """What carries the coming steps, and what to open meanwhile ("group": nothing); the reason is set on a change."""

    use: TransportKind
    prepare: TransportKind = "group"
    reason: str = ""


@dataclass(frozen=True, slots=True)
class TransportStep:
    """One step: what carried it, its level and facts, the view of that transport's network, and the number of ranks.
    `steady`: the steps that follow have the same level, and are no local steps. `routes` is what trees would take,
    where that is known."""

    ran: TransportKind
    level: Level
    facts: StepFacts
    view: View
    world_size: int
    hops: HopsOver
    steady: bool = True
    routes: RouteForecast | None = None


@dataclass(slots=True)
class Trial:
    """Steps over a candidate, against the median and the relative error of those before."""

    kind: TransportKind
    level: Level
    before: float
    error: float
    skipped: int = 0
    seconds: list[float] = field(default_factory=list)

    def take(self, seconds: float) -> bool | None:
        """Whether to keep the candidate; None while that is not decided."""
        if seconds > FAR_LONGER * self.before:
            return False
        if self.skipped < OPENING:
            self.skipped += 1
            return None
        self.seconds.append(seconds)
        if len(self.seconds) < ENOUGH:
            return None
        middle, error = _median(self.seconds)
        ratio, doubt = middle / self.before, math.hypot(error, self.error)
        if abs(ratio - (1 - KEEPS)) <= doubt and len(self.seconds) < MOST:
            return None
        return ratio < 1 - KEEPS


class TransportChooser:
    """Call `take` once per step, on rank 0. `trying`: a trial is going on, and the level must stay. `first` is what the
    job begins with."""

    def __init__(self, offered: Collection[TransportKind] = ("tcp", "ltp"), first: TransportKind = "group") -> None:
        self.use: TransportKind = first
        self._first: TransportKind = first
        # Counts changes of what carries the job: what was measured of steps before the last one is obsolete.
        self.switches = 0
        self._offered = tuple(offered)
        self._prepare: TransportKind = "group"
        self._trial: Trial | None = None
        self._recent: deque[float] = deque(maxlen=2 * ENOUGH)
        self._level: Level | None = None
        self._changes = 0
        self._step = 0
        self._not_before: dict[TransportKind, int] = {}
        self._pause: dict[TransportKind, int] = {}
        self._usual: float | None = None
        self._explained = -1
        self._reason = ""

    @property
    def trying(self) -> bool:
        return self._trial is not None

    def take(
        self, step: TransportStep, ready: Collection[TransportKind], failed: Collection[TransportKind]
    ) -> TransportChoice:
        """`ready`: transports that are open on every rank; `failed`: those that some rank cannot open."""
        self._step += 1
        self._reason = ""
        if self._prepare in failed:
            self._refuse(self._prepare)
        elif self._trial is not None:
            self._continue(self._trial, step)
        elif step.ran == self.use and step.facts.steps == 1:  # a round of local steps seldom waits
            self._collect(step)
            self._look(step, ready)
            self._explain(step)
        carried_by = self._trial.kind if self._trial is not None else self.use
        return TransportChoice(carried_by, self._prepare, self._reason)

    def _collect(self, step: TransportStep) -> None:
        if step.view.changes != self._changes or step.level != self._level:
            if step.view.changes != self._changes:
                self._usual = statistics.median(self._recent) if self._recent else self._usual
            self._changes, self._level = step.view.changes, step.level
            self._recent.clear()
        self._recent.append(step.facts.seconds)

    def _look(self, step: TransportStep, ready: Collection[TransportKind]) -> None:
        """Open or try what is predicted to be better."""
        awaited = "trees" in self._offered and step.routes is None and self._step <= PATIENCE
        if len(self._recent) < ENOUGH or not step.steady or awaited:
            return
        kind, why = self._candidate(step)
        if kind is None:
            return
        if kind == self._first or kind in ready:
            before, error = _median(self._recent)
            level = summable(step.level) if kind == "trees" else step.level
            self._trial, self._prepare = Trial(kind, level, before, error), "group"
            self._reason = f"{why}: measuring {kind}"
        else:
            self._reason = f"{why}: opening {kind}" if self._prepare != kind else ""
            self._prepare = kind

    def _candidate(self, step: TransportStep) -> tuple[TransportKind | None, str]:  # 1
        typical = statistics.median(self._recent)
        longer = self._usual is not None and typical > SLOWER * self._usual
        if self.use != self._first and longer and self._may_try(self._first):
            return self._first, f"steps over {self.use} became longer"
        others = (kind for kind in self._offered if kind != self.use and self._may_try(kind))
        gains = {kind: min(step.facts.exposed, self._gain(kind, step)) for kind in others}
        best = max(gains, key=lambda kind: gains[kind], default=None)
        if best is None or gains[best] < WORTH * typical:
            return None, ""
        saved = f"{best} would save about {Seconds(gains[best])} of a step of {Seconds(typical)}"
        return best, f"{saved} ({step.routes.reason})" if best == "trees" and step.routes is not None else saved

    def _explain(self, step: TransportStep) -> None:
        """Why sums are not formed along trees: once, and again after a network change."""
        routes = step.routes
        if routes is not None and routes.trees is None and not self._reason and self._explained != step.view.changes:
            self._explained = step.view.changes
            self._reason = f"sums stay between all ranks: {routes.reason}"

    def _gain(self, kind: TransportKind, step: TransportStep) -> float:
        """Seconds of a step that another transport is predicted to save."""
        if self.use == "trees":
            return 0.0  # nothing is known of flat exchanges while trees carry the steps
        link = step.view.group
        # The group's own sum of an uncompressed gradient is a ring, whose transfers are not met.
        met = 2.0 if self.use == "group" and not step.level.off else 1.0
        if kind == "trees":
            return _gain_of_trees(step, (met - 1) * step.hops(self.use) * (link.rtprop or 0.0) / 2)
        latency = (met * step.hops(self.use) - step.hops(kind)) * (link.rtprop or 0.0) / 2
        if kind == "ltp" and link.bandwidth and limited_by_loss(step.view, step.world_size):
            return latency + step.facts.wire_bytes / link.bandwidth / 2
        # Equal otherwise, and TCP costs less processor time.
        return latency if kind == "tcp" else 0.99 * latency

    def _may_try(self, kind: TransportKind) -> bool:
        return self._step >= self._not_before.get(kind, 0)

    def _continue(self, trial: Trial, step: TransportStep) -> None:  # 4
        if step.ran != trial.kind:
            return  # it was under way when the trial began
        if step.level != trial.level or step.facts.steps != 1:
            self._trial = None  # not what it is compared with: nothing is known
            self._recent.clear()
            return
        keep = trial.take(step.facts.seconds)
        if keep is None:
            return
        self._trial = None
        self._recent.clear()
        took = f"{Seconds(_median(trial.seconds)[0] if trial.seconds else step.facts.seconds)} a step"
        compared = f"{took} over {trial.kind}, {Seconds(trial.before)} over {self.use}"
        if keep:
            if self.use != self._first:
                self._later(self.use)
            self.use, self._usual = trial.kind, None
            self.switches += 1
            self._changes = -1
        else:
            self._later(trial.kind)
        self._reason = compared

    def _later(self, kind: TransportKind) -> None:
        self._pause[kind] = 2 * self._pause.get(kind, RETRY // 2)
        self._not_before[kind] = self._step + self._pause[kind]

    def _refuse(self, kind: TransportKind) -> None:  # 2
        self._offered = tuple(one for one in self._offered if one != kind)
        self._prepare = "group"
        self._reason = f"{kind} is not possible here; gradients stay on {self.use}"


def _gain_of_trees(step: TransportStep, meeting: float) -> float:
    """`meeting` is the time that transfers wait for their round trips. A forecast of more time than exchanges really
    take is scaled down."""
    routes = step.routes
    if routes is None or routes.trees is None or routes.trees >= routes.flat:
        return 0.0
    flat = min(routes.flat, max(0.0, step.facts.busy - meeting))
    return meeting + flat * (1 - routes.trees / routes.flat)


def limited_by_loss(view: View, world_size: int) -> bool:
    """Whether TCP's answer to loss, and not the link, limits what a rank sends to the others."""
    link = view.group
    if not link.rtprop or not link.bandwidth or link.loss < LEAST_LOSS:
        return False
    each = MATHIS * SEGMENT / (link.rtprop * math.sqrt(link.loss))
    return link.bandwidth <= NEAR * (world_size - 1) * each


def _median(values: Collection[float]) -> tuple[float, float]:
    """The median and its relative standard error, from the median absolute deviation."""
    middle = statistics.median(values)
    spread = statistics.median(abs(value - middle) for value in values)
    return middle, 1.25 * 1.4826 * spread / middle / math.sqrt(len(values))
