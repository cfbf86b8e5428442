"""Capped: limits any controller to levels that are not lossier than the user's cap, the setting `lossiest`.

A lossier decision is replaced by the cap, and the reason says so.
"""

from __future__ import annotations

from gradwire.decide.base import Controller
from gradwire.decide.lossiness import limited
from gradwire.decide.translating_controller import TranslatingController
from gradwire.level import Level
from gradwire.types import Decision


class CappedController(TranslatingController):
    """Wraps a controller whose user set a cap."""

    def __init__(self, inner: Controller, cap: Level) -> None:
        super().__init__(inner, lambda level: limited(level, cap))
        self._cap = cap

    def _explain(self, decision: Decision) -> str:
        return f"lossiest = {self._cap} forbids {decision.level}: {decision.reason}"
