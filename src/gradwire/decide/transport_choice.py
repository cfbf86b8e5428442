"""Transport choice: whether another transport would shorten this job's steps, predicted first and then measured. Pure.

1. predict: over the process group every transfer is met by a round trip of its own, over a wire of gradwire's the
   bytes leave at once; and where loss and not the link limits TCP, LTP is not limited. What trees would save is a
   forecast from the measured links (`RouteForecast`), with the best level of each way (decide/way_forecast.py). While
   it is not known what some levels cost this job, that gain must be a share of LARGE with the others. Steps that hide
   their exchange behind compute have nothing to gain
2. prepare: if the predicted gain is clear, all ranks open that transport in the background. Where one of them
   cannot, the job stays where it is and does not ask for it again
3. try: some steps over it, at the same level, trees at the best level that they can sum; the controller waits
   meanwhile
4. keep it if its steps are clearly shorter than those before (those of another level count with its price in
   steps); else return, and try again late: each time after twice as many steps. A step that takes far longer ends
   the trial at once. What steps over trees took longer than predicted is added to later predictions of them
5. after a network change, steps that have become longer are tried over the first transport again; where loss limits
   gradwire's TCP, LTP is tried
6. along trees: where the steps of the level that the controller settled on take clearly longer to the same loss
   than was predicted of a flat exchange at its best level, that is tried
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Collection
from dataclasses import replace
from typing import Final

from gradwire.decide.loss_limit import limited_by_loss
from gradwire.decide.summable_controller import summable
from gradwire.decide.transport_step import Candidate, TransportChoice, TransportStep
from gradwire.decide.transport_trial import ENOUGH, KEEPS, LATEST, Trial, median, shifted
from gradwire.decide.way_forecast import (
    BestWays,
    WayForecast,
    flat_forecasts,
    flat_ways,
    relative_gain,
    tree_ways,
)
from gradwire.level import Level
from gradwire.types import TransportKind
from gradwire.units import Seconds

# The predicted gain, as a share of a step, from which another transport is opened.
WORTH: Final = 0.1
# Steps after which another transport is opened; it is tried after so many where the predicted gain is a share of LARGE,
# else after as many as a comparison needs.
SOON: Final = 4
LARGE: Final = 0.3
# Steps before a transport that was not kept is tried again; doubled each time.
RETRY: Final = 500
# Steps before one whose trial the network disturbed is tried again.
AGAIN: Final = 30
# After a network change, steps longer than before by this factor are tried over the group again.
SLOWER: Final = 1.3


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
        # What flat transports were predicted to take at every level, when trees were tried; until a change.
        self._flat: dict[TransportKind, tuple[WayForecast, ...]] = {}
        # Seconds that a step over trees was predicted to take, and those that it took longer; until a change.
        self._expected = self._excess = 0.0

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
        elif self._trial is not None and self.use in failed:
            self._adopt(self._trial.kind)  # there is no way back
        elif self._trial is not None:
            self._continue(self._trial, step)
        elif step.ran == self.use and step.facts.steps == 1:  # a round of local steps seldom waits
            self._collect(step)
            self._look(step, ready)
            self._explain(step)
        if self._trial is not None:
            # The trial may end with the way back: ranks report whether it is still open, and do not close its trees.
            return TransportChoice(self._trial.kind, self.use, self._reason, self._trial.level)
        return TransportChoice(self.use, self._prepare, self._reason)

    def _collect(self, step: TransportStep) -> None:
        if step.view.changes != self._changes or step.level != self._level:
            if step.view.changes != self._changes:
                self._usual = statistics.median(self._recent) if self._recent else self._usual
                if self._changes >= 0:
                    self._flat, self._excess = {}, 0.0
            self._changes, self._level = step.view.changes, step.level
            self._recent.clear()
        self._recent.append(step.facts.seconds)
        if shifted(self._recent):
            for _ in range(len(self._recent) - LATEST):
                self._recent.popleft()

    def _look(self, step: TransportStep, ready: Collection[TransportKind]) -> None:
        """Open or try what is predicted to be better."""
        if len(self._recent) < SOON or not step.steady:
            return
        found = self._candidate(step)
        if found is None:
            return
        kind, needed = found.kind, SOON if found.gain >= LARGE else ENOUGH
        if kind == self._first or kind in ready:
            if len(self._recent) < needed:
                return
            before, error = median(self._recent)
            self._trial, self._prepare = Trial(kind, found.level, before * step.price / found.price, error), "group"
            self._reason = f"{found.why}: measuring {kind}"
        else:
            self._reason = f"{found.why}: opening {kind}" if self._prepare != kind else ""
            self._prepare = kind

    def _candidate(self, step: TransportStep) -> Candidate | None:  # 1
        typical = statistics.median(self._recent)
        longer = self._usual is not None and typical > SLOWER * self._usual
        if self.use != self._first and longer and self._may_try(self._first):
            way = self._best_flat(self._first, step)
            level = step.level if way is None else way.level
            return Candidate(self._first, level, step.price, f"steps over {self.use} became longer")
        if self.use == "trees":
            return self._better_flat(step, typical)
        wires = [kind for kind in self._offered if kind not in (self.use, "trees") and self._may_try(kind)]
        gains = {kind: min(step.facts.exposed, self._gain(kind, step)) for kind in wires}
        ways = self._ways(step, typical) if "trees" in self._offered and self._may_try("trees") else None
        if ways is not None:
            gains["trees"] = typical * relative_gain(*ways)
        best = max(gains, key=lambda kind: gains[kind], default=None)
        if best is None or gains[best] < WORTH * typical:
            return None
        saved = f"{best} would save about {Seconds(gains[best])} of a step of {Seconds(typical)}"
        if best != "trees" or ways is None or step.routes is None:
            return Candidate(best, step.level, step.price, saved, gains[best] / typical)
        _, trees = ways
        options = step.options or step.known_options(typical)
        self._flat = {kind: flat_forecasts(options, gains[kind]) for kind in wires}
        self._flat[self.use], self._expected = flat_forecasts(options), trees.now.seconds - self._excess
        gain = gains[best] / typical
        return Candidate("trees", trees.now.level, trees.now.price, f"{saved} ({step.routes.reason})", gain)

    def _ways(self, step: TransportStep, typical: float) -> tuple[BestWays, BestWays] | None:
        """The present transport and trees, each at its best; None without a forecast that speaks for trees."""
        routes, options = step.routes, step.known_options(typical)
        if routes is None or routes.trees is None:
            return None
        if not routes.by_level:
            routes = replace(routes, by_level={summable(step.level): routes.trees})
        work = {level: routes.work.get(level, 0.0) + self._excess for level in routes.by_level}
        routes = replace(routes, work=work)
        trees = tree_ways(options, routes, step.facts, (self._met(step) - 1) * self._trips(self.use, step))
        if trees is None:
            return None
        flat = flat_ways(options)
        # Predictions of one step and the next differ: trees that ranks have opened are tried for a little less.
        least = LARGE - KEEPS if self._prepare == "trees" else LARGE
        return None if step.provisional and relative_gain(flat, trees) < least else (flat, trees)

    def _better_flat(self, step: TransportStep, typical: float) -> Candidate | None:  # 6
        """A flat transport that was predicted to take less to the same loss than trees do, when levels are settled."""
        settled = len(self._recent) == self._recent.maxlen and all(one.now for one in step.options)
        ways = {kind: self._best_flat(kind, step) for kind in self._flat if self._may_try(kind)}
        known = {kind: way for kind, way in ways.items() if way is not None}
        best = min(known, key=lambda kind: known[kind].to_accuracy, default=None)
        if not settled or best is None or known[best].to_accuracy > (1 - WORTH) * typical * step.price:
            return None
        way = known[best]
        predicted = f"{Seconds(way.seconds)} a step over {best} at {way.level}"
        return Candidate(
            best, way.level, way.price, f"{Seconds(typical)} over trees at {step.level}, predicted {predicted}"
        )

    def _best_flat(self, kind: TransportKind, step: TransportStep) -> WayForecast | None:
        """The best level of a flat transport as it was predicted, at what is known of prices now."""
        ways = (replace(one, price=step.price_of(one.level) or one.price) for one in self._flat.get(kind, ()))
        return min(ways, key=lambda way: way.to_accuracy, default=None)

    def _explain(self, step: TransportStep) -> None:
        """Why sums are not formed along trees: once, and again after a network change."""
        routes = step.routes
        if routes is not None and routes.trees is None and not self._reason and self._explained != step.view.changes:
            self._explained = step.view.changes
            self._reason = f"sums stay between all ranks: {routes.reason}"

    def _gain(self, kind: TransportKind, step: TransportStep) -> float:
        """Seconds of a step that another flat transport is predicted to save."""
        link = step.view.group
        latency = self._met(step) * self._trips(self.use, step) - self._trips(kind, step)
        if kind == "ltp" and link.bandwidth and limited_by_loss(step.view, step.world_size):
            return latency + step.facts.wire_bytes / link.bandwidth / 2
        # Equal otherwise, and TCP costs less processor time.
        return latency if kind == "tcp" else 0.99 * latency

    def _met(self, step: TransportStep) -> float:
        """Over the group every transfer is met by a round trip of its own, except those of the ring that sums an
        uncompressed gradient."""
        return 2.0 if self.use == "group" and not step.level.off else 1.0

    @staticmethod
    def _trips(kind: TransportKind, step: TransportStep) -> float:
        """Seconds of the latencies in a row of an exchange."""
        return step.hops(kind) * (step.view.group.rtprop or 0.0) / 2

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
        took = median(trial.seconds)[0] if trial.seconds else step.facts.seconds
        if trial.disturbed:
            self._not_before[trial.kind] = self._step + AGAIN
            self._reason = f"the network changed while {trial.kind} was measured"
            return
        if trial.kind == "trees":
            self._excess = max(0.0, took - self._expected)
        compared = f"{Seconds(took)} a step over {trial.kind}, {Seconds(trial.before)} over {self.use}"
        if keep:
            if self.use != self._first and trial.kind != "trees":
                self._later(self.use)
            self._adopt(trial.kind)
        else:
            self._later(trial.kind)
        self._reason = compared

    def _adopt(self, kind: TransportKind) -> None:
        self.use, self._usual, self._trial = kind, None, None
        self._flat = self._flat if kind == "trees" else {}
        self._recent.clear()
        self.switches += 1
        self._changes = -1

    def _later(self, kind: TransportKind) -> None:
        self._pause[kind] = 2 * self._pause.get(kind, RETRY // 2)
        self._not_before[kind] = self._step + self._pause[kind]

    def _refuse(self, kind: TransportKind) -> None:  # 2
        self._offered = tuple(one for one in self._offered if one != kind)
        self._flat.pop(kind, None)
        self._prepare = "group"
        self._reason = f"{kind} is not possible here; gradients stay on {self.use}"
