"""The route planner: plans on a thread of its own, seldom, and only where links differ."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest

from gradwire.decide.base import Job
from gradwire.exchange.select import FootprintTable
from gradwire.level import Level
from gradwire.runtime.route_planner import LONGEST, PAUSE, SETTLED, RoutePlanner, _Forecast
from gradwire.runtime.transport_decider import CarriedStep
from gradwire.sites.topology import SiteTopology
from gradwire.types import Bucket, LevelOption, LinkFacts, LinkView, RouteForecast, StepFacts, TransportKind, View

MBIT = 1e6 / 8
WORLD = 4
LEVEL = Level.parse("int8")
BUCKET = Bucket(0, 0, 3_200_000, 4, (), True)


def carried(
    step: int, level: Level = LEVEL, kind: TransportKind = "group", changes: int = 0, loss: float = 0.0
) -> CarriedStep:
    job = Job(WORLD, (BUCKET,), FootprintTable(WORLD))
    facts = StepFacts(1.0, 0.9, 0.9, 1_000_000, 2, level=level)
    view = View(LinkView(rtprop=0.04, bandwidth=1e6, loss=loss), changes=changes)
    return CarriedStep(step, float(step), job, facts, view, kind)


def planner(slow: float = 4.0, named: SiteTopology | None = None, trips: bool = True) -> RoutePlanner:
    """Four regions with 100 Mbit/s between them, except between the first two."""
    routes = RoutePlanner(WORLD, named)
    for a, b in permutations(range(WORLD), 2):
        rate = (slow if {a, b} == {0, 1} else 100.0) * MBIT
        routes.learn(a, LinkFacts(b, 0.04 if trips else 0.0, rate, rate, 300 * MBIT))
    return routes


def run(routes: RoutePlanner, steps: range, step: CarriedStep) -> list[RouteForecast | None]:
    found = []
    for number in steps:
        found.append(routes.take(replace(step, step=number, now=float(number))))
        routes.close()  # waits for the plan
    return found


def test_a_slow_link_gives_a_forecast_and_a_proposal_once_steps_are_steady() -> None:
    routes = planner()
    found = run(routes, range(SETTLED + 3), carried(0))
    assert found[: SETTLED + 1] == [None] * (SETTLED + 1)
    forecast = found[-1]
    assert forecast is not None
    assert forecast.trees is not None
    assert forecast.trees < 0.75 * forecast.flat
    assert routes.proposal is not None
    assert routes.proposal.plan.planner == "loadaware"
    assert routes.proposal.wire == "tcp"


def test_equal_links_need_no_plan_and_no_thread() -> None:
    routes = planner(slow=100.0)
    found = run(routes, range(SETTLED + 3), carried(0))
    assert found[-1] == RouteForecast(0.0, None, "links are about equal: 100 Mbit/s usually, 100 Mbit/s at the slowest")
    assert routes._thread is None
    assert routes.proposal is None


def test_nothing_is_forecast_before_something_is_known_of_every_link() -> None:
    routes = planner(trips=False)
    assert set(run(routes, range(30), carried(0))) == {None}
    assert routes._thread is None


def test_plans_are_made_after_longer_and_longer_pauses_and_at_once_after_a_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    routes, made = planner(), [0]
    begin = routes._begin

    def counted(step: CarriedStep, level: Level) -> None:
        made[0] += 1
        begin(step, level)

    monkeypatch.setattr(routes, "_begin", counted)
    run(routes, range(int(4 * PAUSE)), carried(0))
    assert made[0] == 3, "after 7, 22 and 52 steps of a second"
    run(routes, range(100, 110 + SETTLED), carried(0, changes=1))
    assert made[0] == 4


def test_a_forecast_is_for_one_level_and_not_for_steps_over_trees() -> None:
    routes = planner()
    run(routes, range(SETTLED + 2), carried(0))
    assert routes.take(carried(20)) is not None
    assert routes.take(carried(21, kind="trees")) is None
    assert routes.take(carried(22, level=Level.parse("int4"))) is None


def test_a_change_of_transport_keeps_the_forecast_and_a_network_change_over_it_does_not() -> None:
    routes = planner()
    run(routes, range(SETTLED + 2), carried(0, changes=3))
    assert routes.take(carried(20, kind="tcp", changes=0)) is not None, "each transport counts its own changes"
    assert routes.take(carried(21, changes=3)) is not None
    assert routes.take(carried(22, kind="tcp", changes=1)) is None


def test_a_plan_waits_for_what_levels_cost_and_equal_links_for_nothing() -> None:
    routes, unknown = planner(), replace(carried(0), options=None)
    assert run(routes, range(SETTLED + 3), unknown)[-1] is None
    equal = planner(slow=100.0)
    assert run(equal, range(SETTLED + 3), unknown)[-1] is not None
    assert equal.uniform
    assert not routes.uniform


def test_before_sparse_levels_have_a_price_the_others_are_planned_for_and_then_all() -> None:
    sparse = Level.parse("topk:0.1+int8")
    option = LevelOption(LEVEL, 1.0, 0.9)
    few = replace(carried(0), options=(option, LevelOption(sparse, 0.2, 0.1, known=False)))
    routes = planner()
    forecast = run(routes, range(SETTLED + 3), few)[-1]
    assert forecast is not None
    assert set(forecast.by_level) == {LEVEL}
    all_known = replace(few, options=(option, LevelOption(sparse, 0.2, 0.1)))
    forecast = run(routes, range(SETTLED + 3, SETTLED + 6), all_known)[-1]
    assert forecast is not None
    assert set(forecast.by_level) == {LEVEL, Level.parse("sharedk:0.1+int8")}


def test_another_transport_shows_other_links() -> None:
    routes = planner(slow=100.0)
    run(routes, range(SETTLED + 2), carried(0))
    assert routes.uniform
    for a, b in permutations(range(WORLD), 2):
        routes.learn(a, LinkFacts(b, 0.04, (4.0 if {a, b} == {0, 1} else 100.0) * MBIT, 0.0, 300 * MBIT))
    run(routes, range(SETTLED + 2, 2 * SETTLED + 6), carried(0, kind="ltp"))
    assert not routes.uniform
    assert routes.proposal is not None


def test_loss_that_limits_tcp_lets_trees_use_ltp() -> None:
    routes = planner()
    run(routes, range(SETTLED + 2), carried(0, loss=0.01))
    assert routes.proposal is not None
    assert routes.proposal.wire == "ltp"


def test_sites_are_measured_unless_they_are_named() -> None:
    routes = RoutePlanner(WORLD)
    for a, b in permutations(range(WORLD), 2):
        near = a // 2 == b // 2
        routes.learn(a, LinkFacts(b, 0.0002 if near else 0.05, (900 if near else 1) * MBIT, 0.0, 0.0))
    assert routes.sites() == ((0, 1), (2, 3))
    run(routes, range(SETTLED + 2), carried(0))
    assert routes.proposal is not None
    assert routes.proposal.plan.planner == "sites"
    named = SiteTopology(((0, 2), (1, 3)))
    assert planner(named=named).sites() == named.groups


@pytest.mark.parametrize("peer", [-1, 0, WORLD, 99])
def test_reports_about_no_other_rank_are_ignored(peer: int) -> None:
    routes = RoutePlanner(WORLD)
    routes.learn(0, LinkFacts(peer, 0.1, 1.0, 1.0, 1.0))
    assert routes._reports == {}


def test_a_comparison_with_a_level_that_may_not_be_used_any_more_is_made_again_at_once() -> None:
    routes, short = planner(), Level.parse("lowrank:32+int4")
    allowed = replace(carried(0), options=(LevelOption(LEVEL, 1.0, 0.9), LevelOption(short, 0.1, 0.05)))
    routes._forecast = _Forecast("group", {LEVEL: 3.0, short: 0.1}, None, "low rank is shorter than trees")
    routes._begun, routes._next = 0.0, LONGEST
    assert run(routes, range(1, SETTLED + 3), allowed)[-1] == RouteForecast(3.0, None, "low rank is shorter than trees")
    forbidden = replace(allowed, options=allowed.options[:1] if allowed.options else ())
    forecast = run(routes, range(SETTLED + 3, SETTLED + 5), forbidden)[-1]
    assert forecast is not None
    assert forecast.trees is not None
    made = routes._forecast
    run(routes, range(SETTLED + 5, SETTLED + 9), forbidden)
    assert routes._forecast is made, "and not at every step"
