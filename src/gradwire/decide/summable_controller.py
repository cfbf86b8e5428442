"""Summable controller: restricts any controller to levels whose payloads can be summed inside a tree.

Its decisions are translated: top-k becomes a shared mask (sharedk), low rank becomes int4. The inner controller keeps
its own ladder.
"""

from __future__ import annotations

from gradwire.decide.base import Controller
from gradwire.decide.ladder import LADDER
from gradwire.decide.translating_controller import TranslatingController
from gradwire.level import Level


def summable(level: Level) -> Level:
    """The nearest summable level: as many bytes or fewer, except for low rank."""
    if level.select == "lowrank":
        return Level(values="int4")
    select = "sharedk" if level.sparse and level.select != "randk" else level.select
    return Level(select, level.ratio, 0, level.values)


class SummableController(TranslatingController):
    """Wraps a controller for use with a plan."""

    def __init__(self, inner: Controller) -> None:
        super().__init__(inner, summable)
        # A step may have been decided elsewhere (a trial of trees): its shared mask is the ladder's top-k, not `off`.
        self._original |= {summable(rung.level): rung.level for rung in LADDER if rung.level.sparse}
