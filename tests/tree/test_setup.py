"""Later plans are made with the settings of the first one, and by what was measured since."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gradwire.clock import MonotonicClock
from gradwire.config import resolve
from gradwire.plan.membership.control_messages import LinkReport
from gradwire.plan.membership.link_estimates import LEAST_BYTES, LinkObservation
from gradwire.tree import plan_manager
from gradwire.tree.link_monitor import LinkMonitor
from gradwire.tree.setup import (
    EventContext,
    TreeConnection,
    TreeContext,
    TreeMembership,
    connect_tree,
)
from tests.tree.grid import LIMIT, ltp_wires

NUMEL = 60_000


class Events(list[Any]):
    emit = list.append


@contextmanager
def connections(count: int, settings: dict[str, Any]) -> Iterator[list[TreeConnection]]:
    config = resolve({"level": "off", **settings})
    context = TreeContext(config=config, numel=NUMEL, events=EventContext(MonotonicClock(), Events()))
    plan = context.plan(context.known_network(count), 1)
    everybody = range(count)
    with ltp_wires(count) as wires:
        places = [TreeMembership(number=r, members=everybody, plan=plan, ranks=everybody) for r in everybody]
        opened = [connect_tree(context, wires[r], places[r]) for r in everybody]
        try:
            yield opened
        finally:
            for one in opened:
                one.close()


def eventually(happened: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + LIMIT
    while not happened() and time.monotonic() < deadline:
        time.sleep(0.01)
    return happened()


@pytest.fixture(autouse=True)
def _only_what_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loopback is much faster than any network here."""
    monkeypatch.setattr(LinkMonitor, "observe", lambda self, now: ())


def test_pairs_left_to_routers_are_not_relayed_by_a_later_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_manager, "CHECK", 0.05)
    links = [{"from": "a", "to": end, "rate": "200mbit", "rtt": "40ms"} for end in ("b", "c")]
    net = tmp_path / "net.json"
    net.write_text(json.dumps({"sites": ["a", "b", "c"], "links": links}))
    checks: list[str] = []
    consider = plan_manager.Replanner.consider

    def noted(*args: Any) -> Any:
        plan, why = consider(*args)
        checks.append(why)
        return plan, why

    monkeypatch.setattr(plan_manager.Replanner, "consider", noted)
    planning = {"net": str(net), "relay": False, "interval": 0.0, "probe": False}
    with connections(3, {"plan": "ring", "planning": planning}) as opened:
        assert not opened[0].executor.member.plan.routes
        assert eventually(lambda: len(checks) >= 2)
        assert all(why.startswith("kept plan 1") for why in checks), checks


def test_a_regroup_plans_by_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_manager, "CHECK", float("inf"))
    slow = tuple(LinkObservation(3, other, 1e5, 0.02, LEAST_BYTES, 0.0) for other in (1, 2))
    rest = tuple(
        LinkObservation(a, b, 1e7, 0.02, LEAST_BYTES, 0.0)
        for a in range(4)
        for b in range(4)
        if a != b and (a, b) not in ((3, 1), (3, 2))
    )
    with connections(4, {"plan": "loadaware", "planning": {"elastic": True}}) as opened:
        executor, member = opened[0].executor, opened[0].executor.member
        assert {(3, 1), (3, 2)} & {edge for tree in member.plan.trees for edge in tree.parents.items()}
        executor.call_soon(lambda: executor.manager.channel.dispatch(3, LinkReport(slow + rest)))
        executor.call_soon(lambda: member.admit(1, executor.now()))
        assert eventually(lambda: all(one.executor.member.epoch > 0 for one in opened))
        used = {edge for tree in opened[3].executor.member.plan.trees for edge in tree.parents.items()}
        assert not used & {(3, 1), (3, 2)}
