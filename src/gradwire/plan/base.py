"""What a planner is: one pure function from a Matrix and a Job to trees over member indices, with a sentence.

It may count on a connected matrix of at least two members. Edges without a direct link are allowed: relays carry them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gradwire.flow import Tree
from gradwire.plan.cost import Forecast
from gradwire.plan.job import Job
from gradwire.plan.load import Load
from gradwire.plan.matrix import Matrix


@dataclass(frozen=True, slots=True)
class Draft:
    """Trees over indices, why these, and load and forecast where the planner already made them."""

    trees: tuple[Tree, ...]
    reason: str
    seen: Forecast | None = None
    load: Load | None = None


class Planner(Protocol):
    def __call__(self, matrix: Matrix, job: Job) -> Draft: ...
