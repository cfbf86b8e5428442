"""TransportDecider: rank 0's decision about level and transport, from its controller and its transport chooser.

In: a step of the whole job, what carried it, and which transports every rank has ready. Out: the next decision. While a
transport is on trial the controller is not asked: the trial holds the level. After a change the controller sees a
network change, and starts its own measurements again. Over trees it chooses among levels that can be summed inside
them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, Protocol

from gradwire.decide.base import Controller, Job, options_of, price_of
from gradwire.decide.summable_controller import SummableController, summable
from gradwire.decide.transport_choice import TransportChooser
from gradwire.decide.transport_step import TransportStep
from gradwire.events import Sink, TransportChosen
from gradwire.exchange.select import FootprintTable
from gradwire.runtime.governor import sendable
from gradwire.types import Decision, LevelOption, Readiness, RouteForecast, StepFacts, TransportKind, View

# Rounds of pulses from a request to open trees until what ranks report is the answer to it. Trees that were left are
# closed, and a report from before that must not be taken for one of those that are opened anew.
ANSWERED: Final = 4


@dataclass(frozen=True, slots=True)
class CarriedStep:
    """A step of the whole job; `carried_by` names its transport, `view` is what that transport shows. `options` are the
    levels that the controller may use; None as long as it does not know."""

    step: int
    now: float
    job: Job
    facts: StepFacts
    view: View
    carried_by: TransportKind = "group"
    options: tuple[LevelOption, ...] | None = ()


class RouteForecaster(Protocol):
    """Predicts what trees would take instead of what carries the steps now."""

    @property
    def uniform(self) -> bool:
        """Links are about equal, as far as is known: levels along trees need no price."""
        ...

    def take(self, step: CarriedStep) -> RouteForecast | None:
        """Called once per step; None as long as nothing is known."""
        ...


class TransportDecider:
    """`chooser` is None where the transport is not open to choice; `routes` where trees are not."""

    def __init__(
        self,
        controller: Controller,
        chooser: TransportChooser | None,
        sink: Sink,
        routes: RouteForecaster | None = None,
    ) -> None:
        self._controller, self._chooser, self._sink, self._routes = controller, chooser, sink, routes
        self._over_trees = SummableController(controller)
        self._wire: FootprintTable | None = None
        # Added to a transport's own count of network changes: the controller's count rises with every change.
        self._changes_before = self._changes_shown = 0
        # Rounds in a row in which the decision asked ranks to open trees, and whether others were left before.
        self._requested = 0
        self._left = False
        # The decision before a trial, which may have had another level.
        self._held: Decision | None = None

    def decide(self, step: CarriedStep, last: Decision, ranks: Iterable[Readiness]) -> Decision:
        """`last` is the decision before; `ranks` say what each of them has prepared."""
        chooser = self._chooser
        if chooser is None:
            return self._ask(step)
        before, trying = chooser.use, chooser.trying
        choice = chooser.take(self._carried(step, last), *self._answers(last, ranks))
        if choice.reason:
            self._sink.emit(TransportChosen(step.now, step.step, choice.use, choice.reason))
        if chooser.use != before:
            self._changes_before = self._changes_shown + 1 - step.view.changes
        if chooser.trying and not trying:
            self._held = last
        elif trying and not chooser.trying and chooser.use == before and self._held is not None:
            last = self._held
        asked = not (trying or chooser.trying) and step.carried_by == chooser.use
        decision = self._ask(step) if asked else last
        level = choice.level or (summable(decision.level) if choice.use == "trees" else decision.level)
        return replace(decision, level=level, transport=choice.use, prepare=choice.prepare)

    def _answers(self, last: Decision, ranks: Iterable[Readiness]) -> tuple[set[TransportKind], set[TransportKind]]:
        """What is ready on every rank, and what failed on one."""
        asked = last.prepare == "trees"
        self._left = self._left or (self._requested > 0 and not asked)
        self._requested = self._requested + 1 if asked else 0
        ready, failed = _prepared(ranks)
        if last.transport != "trees" and self._left and self._requested < ANSWERED:
            ready, failed = ready - {"trees"}, failed - {"trees"}
        return ready, failed

    def _ask(self, step: CarriedStep) -> Decision:
        self._changes_shown = step.view.changes + self._changes_before
        view = replace(step.view, changes=self._changes_shown)
        return sendable(self._over(step.carried_by).decide(step.job, view, step.facts, step.now))

    def _over(self, transport: TransportKind) -> Controller:
        return self._over_trees if transport == "trees" else self._controller

    def _carried(self, step: CarriedStep, last: Decision) -> TransportStep:
        level = step.facts.level
        assert level is not None
        steady = last.level == level and last.sync_every == 1
        job = step.job
        over_wire = self._wire = self._wire or FootprintTable(job.world_size, own_wire=True)

        def hops(kind: TransportKind) -> int:
            table = job.footprint if kind == step.carried_by else over_wire
            found = table(level, job.buckets)
            return found[-1].hops if found else 0

        asked = self._routes is not None and not self._routes.uniform
        options = options_of(self._over(step.carried_by)) if asked else ()
        routes = self._routes.take(replace(step, options=options)) if self._routes is not None else None
        return TransportStep(
            step.carried_by, level, step.facts, step.view, job.world_size, hops, steady, routes, options or (),
            price_of=lambda one: price_of(self._controller, one),
        )  # fmt: skip


def _prepared(ranks: Iterable[Readiness]) -> tuple[set[TransportKind], set[TransportKind]]:
    """The transports that are ready on every rank, and those that failed on one."""
    known = list(ranks)
    kinds = {one.kind for one in known} - {"group"}
    failed = {one.kind for one in known if one.failed}
    ready = {kind for kind in kinds if all(one.kind == kind and not one.failed for one in known)}
    return ready, failed
