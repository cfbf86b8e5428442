"""Period controller: decides level and number of local steps together, where `sync_every = "auto"` allows that.

Synchronous steps are decided by another controller (`auto`, or a fixed level); this one compares what that reaches
with local steps at every dense level allowed:

    1. learn from the step or round: seconds of compute, how wrong the prediction of the exchange was, and how far apart
       the ranks went (decide/period_price.py)
    2. predict every option: local ones by the cost model with all buckets ready at once, the synchronous one as
       measured, else as predicted with the bucket times of the last synchronous step
    3. choose (decide/period.py); a change must be proposed twice, and the next one comes some steps later. That number
       doubles with every return to an earlier option, as long as the network does not change
    4. where the noted losses show that local steps harm training, use fewer of them (decide/period_guard.py)
    5. the first decision that returns to synchronous steps has the level `off`: that exchange ends the last round and
       sends all that is in residuals

Along an elastic plan all steps are local (local_steps/voted_rounds.py): `synchronous` is False, and there is no 5.

Which levels are dear for pseudo-gradients is known for dense ones only, so local steps use no others.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from gradwire.decide.base import Controller, Job
from gradwire.decide.cost_model import predict
from gradwire.decide.ladder import LADDER, Rung, index_of
from gradwire.decide.lossiness import at_most
from gradwire.decide.period import PERIODS, PeriodOption, best_of, choose, longest_round
from gradwire.decide.period_guard import PeriodGuard
from gradwire.decide.period_price import PeriodPrice
from gradwire.decide.price import EXACT, FORMATS
from gradwire.level import Level
from gradwire.types import Decision, StepFacts, View

# Steps or rounds whose median counts.
KEPT: Final = 9
# Optimizer steps, and at least this many decisions, between two changes; and the longest time after returns.
HOLD: Final = 10
HOLD_DECISIONS: Final = 3
LONGEST_HOLD: Final = 640
# A gain of this factor is taken when proposed once.
AT_ONCE: Final = 2.0
# Limits of how wrong a prediction may be said to be: one outlier must not exclude an option for ever.
LEAST_ERROR, GREATEST_ERROR = 0.2, 5.0


class PeriodController:
    """`inner` decides the level of synchronous steps. `levels`, least lossy first, are those of local steps; `dear` is
    the most that a level of `inner` may cost in steps where that is not known; `synchronous`: whether training may be
    synchronous."""

    def __init__(
        self, inner: Controller, levels: Sequence[Level], dear: float = 0.05, *, synchronous: bool = True
    ) -> None:
        self._may_synchronise = synchronous
        self._inner, self._levels, self._dear = inner, tuple(levels), 1 + dear
        self._price: PeriodPrice | None = None
        self._computes: deque[float] = deque(maxlen=KEPT)
        self._errors: dict[bool, deque[float]] = {mode: deque(maxlen=KEPT) for mode in (True, False)}
        self._synchronous: tuple[Job, StepFacts] | None = None
        self._decided: Decision | None = None
        self._local, self._every, self._level = not synchronous, 1 if synchronous else PERIODS[0], self._levels[0]
        self._proposed: tuple[bool, int] | None = None
        self._steps = self._decisions = self._changes = self._version = 0
        # The first change waits for decisions only: until it is made, every step is the slow one.
        self._moved_at, self._moved_decision, self._hold = -HOLD, 0, HOLD
        self._visited: set[int] = set()
        self._guard = PeriodGuard()

    def decide(self, job: Job, view: View, facts: StepFacts, now: float) -> Decision:
        self._steps += facts.steps
        self._decisions += 1
        if facts.divergence is None and facts.steps == 1 and self._may_synchronise:
            self._decided = self._inner.decide(job, view, facts, now)
            self._synchronous = job, facts
        sure, view = view, _known(view)
        self._learn(job, view, facts)  # 1
        if (view.group.bandwidth is None and view.group.rtprop is None) or not self._computes or job.world_size < 2:
            return self._stay("the network has not been measured yet")
        harmed = self._guard.check(self._steps, self._every, facts.loss)
        options = [one for one in self._options(job, view, facts) if self._allows(one.sync_every)]  # 2
        if harmed:  # 4
            return self._back_off(options)
        if not options:
            return self._stay("the bandwidth has not been measured yet")
        here = next((one for one in options if (one.sync_every, one.level) == (self._every, self._level)), options[0])
        network = _certain(options[0].level, job, sure) if self._may_synchronise else math.inf
        best, reason = choose(options, here, network)  # 3
        if best == here or not self._confirmed(best, here):
            self._proposed = None if best == here else (best.local, best.sync_every)
            return self._stay(reason)
        return self._move(best, reason)

    def resume(self, level: Level, sync_every: int) -> None:
        """A state was loaded that was saved with this many local steps a round."""
        self._local, self._every, self._level = sync_every > 1, sync_every, level

    def _learn(self, job: Job, view: View, facts: StepFacts) -> None:
        if view.changes != self._changes:
            self._changes, self._hold, self._visited = view.changes, HOLD, set()
            for errors in self._errors.values():
                errors.clear()
        self._price = self._price or PeriodPrice(job.world_size)
        self._price.world_size = job.world_size
        self._price.take(facts.divergence, facts.adaptive)
        self._adaptive = facts.adaptive is not False
        if facts.seconds > 0:
            self._computes.append(facts.compute / max(1, facts.steps))
        local, level = facts.divergence is not None, facts.level or Level()
        predicted = self._exchange(level, job, view, None if local else facts)
        if view.group.bandwidth is not None and predicted > 0 and facts.exposed > 0.02 * facts.seconds:
            error = min(max(facts.exposed / predicted, LEAST_ERROR), GREATEST_ERROR)
            self._errors[local].append(error)

    def _allows(self, sync_every: int) -> bool:
        if sync_every == PERIODS[0] and not self._may_synchronise:
            return True
        return self._guard.allows(sync_every) and sync_every <= max(self._every, longest_round(self._steps))

    def _options(self, job: Job, view: View, facts: StepFacts) -> list[PeriodOption]:
        """The synchronous option, then local ones with ever more steps, each by level, least lossy first. While only
        the latency is known, at the level in use: without a bandwidth all levels look equal."""
        assert self._price is not None
        measured, used = view.group.bandwidth is not None, facts.level
        levels = [level for level in self._levels if measured or level == used]
        local = {level: self._error(True) * self._exchange(level, job, view, None) for level in levels}
        compute = statistics.median(self._computes)
        return [
            *([self._synchronous_option(job, view, compute)] if self._may_synchronise else []),
            *(
                PeriodOption(level, every, compute, exchange, self._price.of(every) * self._level_price(level))
                for every in PERIODS
                for level, exchange in local.items()
            ),
        ]

    def _synchronous_option(self, job: Job, view: View, compute: float) -> PeriodOption:
        """What synchronous training reaches, at the level in use or at the best dense one. Where no synchronous step
        was seen, its exchange is taken to begin when backward has ended."""
        job, facts = self._synchronous or (job, None)
        own = () if self._decided is None else (self._decided.level,)
        error = self._error(False)
        options = [
            PeriodOption(level, 1, compute, error * self._exchange(level, job, view, facts), self._level_price(level))
            for level in dict.fromkeys((*own, *self._levels))
        ]
        best = min(options, key=lambda one: one.to_accuracy)
        return replace(best, level=own[0]) if own and not self._local else best

    def _exchange(self, level: Level, job: Job, view: View, facts: StepFacts | None) -> float:
        """Seconds that training would wait for an exchange; with the facts of a synchronous step, beside backward."""
        rung = LADDER[index_of(level)] if level in _RUNGS else Rung(level, LADDER[-1].work)
        shape = facts or StepFacts()
        return predict(rung, job, view, shape, level, 1.0).exposed

    def _error(self, local: bool) -> float:
        """Measured / predicted; for rounds that were not measured yet, that of synchronous steps."""
        errors = self._errors[local] or self._errors[False]
        return statistics.median(errors) if errors else 1.0

    def _level_price(self, level: Level) -> float:
        if level.select != "all":
            return self._dear
        return FORMATS.get(level.values, EXACT)[0 if self._adaptive else 1]

    def _back_off(self, options: list[PeriodOption]) -> Decision:
        """After harm: the best option that the guard allows, all of which have fewer local steps."""
        best = best_of(options)
        return replace(self._move(best, f"{self._guard.reason}; backing off to {best}"), guarded=True)

    def _confirmed(self, best: PeriodOption, here: PeriodOption) -> bool:
        if here.to_accuracy >= AT_ONCE * best.to_accuracy:
            return True
        held = self._steps >= self._moved_at + self._hold and self._decisions >= self._moved_decision + HOLD_DECISIONS
        return held and self._proposed == (best.local, best.sync_every)

    def _stay(self, reason: str) -> Decision:
        if self._local:
            return Decision(self._level, reason, self._version, sync_every=self._every)
        decided = self._decided or Decision(Level(), reason)
        self._level = decided.level
        return replace(decided, version=decided.version + self._version)

    def _move(self, best: PeriodOption, reason: str) -> Decision:
        self._visited.add(self._every)
        if best.sync_every in self._visited and best.sync_every != self._every:
            self._hold = min(LONGEST_HOLD, 2 * self._hold)
        ended = self._local and not best.local
        self._local, self._every, self._level = best.local, best.sync_every, best.level
        self._moved_at, self._moved_decision, self._proposed = self._steps, self._decisions, None
        self._version += 1
        if ended:  # 5
            return Decision(Level(), reason, self._version, sync_every=1)
        return Decision(best.level, reason, self._version, sync_every=best.sync_every)


_RUNGS: Final = {rung.level for rung in LADDER}


def local_levels(lossiest: Level | None, extra_steps: float) -> tuple[Level, ...]:
    """The dense levels of the ladder that the user's limits allow."""
    dense = [rung.level for rung in LADDER if rung.level.select == "all"]
    cheap = [level for level in dense if FORMATS.get(level.values, EXACT)[0] <= 1 + extra_steps]
    return tuple(level for level in cheap if level.off or lossiest is None or at_most(level, lossiest))


def _certain(level: Level, job: Job, view: View) -> float:
    """Seconds of an exchange that the network takes for certain. A bandwidth that is not identified counts as endless:
    what was measured in its place is a lower bound, with the machine's part in it."""
    sizes, group = job.sizes(level), view.group
    sending = sizes.wire_bytes / group.bandwidth if group.bandwidth else 0.0
    return sizes.last_hops * (group.rtprop or 0.0) / 2 + sending


def _known(view: View) -> View:
    """Where the bandwidth is not identified, what the network carries at least."""
    group = view.group
    if group.bandwidth is None and group.floor > 0:
        return replace(view, group=replace(group, bandwidth=group.floor))
    return view
